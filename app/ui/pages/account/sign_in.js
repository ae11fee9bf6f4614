// The sign-in page. Redirects to the page that the user wanted to open.

import { request } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";
import { onSubmit } from "./forms.js";

/**
 * The redirect target, limited to this origin: the `next` parameter is untrusted (open redirect).
 * @param {string | null} wanted
 * @param {string} origin
 */
export function placeToGo(wanted, origin) {
  if (!wanted?.startsWith("/")) return "/";
  let place;
  try {
    place = new URL(wanted, origin);
  } catch {
    return "/";
  }
  return place.origin === origin ? place.pathname + place.search + place.hash : "/";
}

const password = byId("dp-password");

onSubmit(byId("dp-form"), byId("dp-problem"), async () => {
  try {
    await request("POST", "/api/account/sign-in", { name: byId("dp-name").value, password: password.value });
  } catch (error) {
    password.select();
    throw error;
  }
  location.assign(placeToGo(new URLSearchParams(location.search).get("next"), location.origin));
});

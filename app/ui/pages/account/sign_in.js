// The sign-in page. Redirects to the page that the user wanted to open.

import { request } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";
import { redirectTarget } from "./address.js";
import { onSubmit } from "./forms.js";

const password = byId("dp-password");

onSubmit(byId("dp-form"), byId("dp-problem"), async () => {
  try {
    await request("POST", "/api/account/sign-in", { name: byId("dp-name").value, password: password.value });
  } catch (error) {
    password.select();
    throw error;
  }
  location.assign(redirectTarget(new URLSearchParams(location.search).get("next"), location.origin));
});

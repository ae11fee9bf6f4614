// The sign-in page. Redirects to the page that the user wanted to open. Offers the sign-in provider, if there is one.

import { request } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";
import { redirectTarget } from "./address.js";
import { onSubmit } from "./forms.js";
import { problemText } from "./oidc_texts.js";

/** @import { SignInOptions } from "../../shared/api_types.js" */

const parameters = new URLSearchParams(location.search);
const next = redirectTarget(parameters.get("next"), location.origin);
const password = byId("dp-password");

onSubmit(byId("dp-form"), byId("dp-problem"), async () => {
  try {
    await request("POST", "/api/account/sign-in", { name: byId("dp-name").value, password: password.value });
  } catch (error) {
    password.select();
    throw error;
  }
  location.assign(next);
});

/** @param {SignInOptions} options */
function offerProvider({ provider }) {
  const problem = parameters.get("problem");
  if (problem !== null) byId("dp-problem").textContent = problemText(problem, provider);
  if (provider === null) return;
  const link = byId("dp-provider-link");
  link.textContent = `Sign in with ${provider}`;
  link.href = `/api/account/oidc/start?next=${encodeURIComponent(next.slice(location.origin.length))}`;
  byId("dp-provider").hidden = false;
}

// Signing in with a password works without the answer, too.
request("GET", "/api/account/sign-in").then(offerProvider, () => offerProvider({ provider: null }));

// The page behind a setup, invitation or password reset link.

import { errorMessage, request } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";
import { linkToken } from "./address.js";
import { onSubmit } from "./forms.js";

/** @import { Link } from "../../shared/api_types.js" */

const ROLES = {
  admin: "As an admin, you can chat, run the desk and manage its users.",
  agent: "As an agent, you can chat.",
  viewer: "As a viewer, you have read-only access.",
};

const token = linkToken(location);

/** @param {Link} link */
function describe({ purpose, role, name, local_conversations: count }) {
  const title = { setup: "Create the first admin", invitation: "Create your account", reset: "Choose a new password" }[purpose];
  byId("dp-title").textContent = title;
  document.title = `${title} · Deskmate`;
  byId("dp-lead").textContent =
    purpose === "reset" ? `For ${name}. You'll be signed out everywhere else.` : ROLES[role];
  if (purpose === "reset") {
    byId("dp-who").hidden = true;
    byId("dp-name").required = false;
    byId("dp-name").value = name;
    byId("dp-submit").textContent = "Save and sign in";
  }
  if (count > 0) {
    const conversations = count === 1 ? "the conversation" : `the ${count} conversations`;
    byId("dp-history-text").textContent = `Move ${conversations} from before accounts were turned on to my account`;
    byId("dp-history").hidden = false;
  }
  byId("dp-form").hidden = false;
  byId(purpose === "reset" ? "dp-password" : "dp-name").focus();
}

async function loadLink() {
  if (!token) {
    byId("dp-title").textContent = "No link";
    byId("dp-lead").textContent = "Open the full link that the server printed when it started, or that an admin gave you.";
    return;
  }
  try {
    describe(await request("POST", "/api/links/look", { token }));
  } catch (error) {
    byId("dp-title").textContent = "This link doesn't work";
    byId("dp-lead").textContent = errorMessage(error);
  }
}

onSubmit(byId("dp-form"), byId("dp-problem"), async () => {
  const password = byId("dp-password").value;
  if (password !== byId("dp-again").value) {
    byId("dp-problem").textContent = "The passwords don't match.";
    byId("dp-again").select();
    return;
  }
  const account = byId("dp-who").hidden ? {} : { name: byId("dp-name").value, display_name: byId("dp-display").value };
  const history = byId("dp-history").hidden ? {} : { with_history: byId("dp-with-history").checked };
  await request("POST", "/api/links/use", { token, password, ...account, ...history });
  location.replace("/"); // not assign: the back button would open the used link
});

await loadLink();
document.querySelector("main")?.removeAttribute("aria-busy");

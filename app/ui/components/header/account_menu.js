// The account menu in the header, and the read-only state of the page for viewers.

import { signOut } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";

const VIEWER_NOTE = "You have read-only access as a viewer. Ask an admin if you need to write.";

// `onError(error)` is called when signing out fails.
export function setUpAccountMenu({ accounts, user }, onError) {
  const button = byId("dm-me");
  const name = accounts ? `${user.name} (${user.role})` : "Desk";
  button.setAttribute("aria-label", accounts ? `Signed in as ${name}` : "Desk");
  button.title = accounts ? name : "Desk";
  const goTo = (place) => () => location.assign(place);
  const entries = [{ name: "Desk", iconName: "desk", action: goTo("/desk") }];
  if (accounts) {
    entries.unshift({ name: `Account (${user.name})`, iconName: "person", action: goTo("/account") });
    entries.push({ name: "Sign out", iconName: "leave", action: () => signOut().catch(onError) });
  }
  button.addEventListener("click", () => openMenu(button, name, entries));
  button.hidden = false;
  if (user.role !== "viewer") return;
  document.documentElement.classList.add("dm-viewer");
  byId("dm-viewer-note").textContent = VIEWER_NOTE;
  // Viewers can see a conversation's settings but not change them.
  for (const part of document.querySelectorAll("#dm-settings .form, #dm-prompt-about, #dm-reset")) part.inert = true;
}

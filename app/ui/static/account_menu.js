// Who is signed in: the menu in the header, and the page of somebody who only reads.

import { signOut } from "./api.js";
import { byId } from "./dom.js";
import { openMenu } from "./menu.js";

const VIEWER_NOTE = "You can read here and not write: you are a viewer. An admin can change that.";

// `onError(error)`: signing out did not work.
export function setUpAccountMenu({ accounts, user }, onError) {
  const button = byId("dm-me");
  const name = accounts ? `${user.name} (${user.role})` : "This desk";
  button.setAttribute("aria-label", accounts ? `Signed in as ${name}` : "The desk");
  button.title = accounts ? name : "The desk";
  const goTo = (place) => () => location.assign(place);
  const entries = [{ name: "Desk", iconName: "desk", action: goTo("/desk") }];
  if (accounts) {
    entries.unshift({ name: `Account of ${user.name}`, iconName: "person", action: goTo("/account") });
    entries.push({ name: "Sign out", iconName: "leave", action: () => signOut().catch(onError) });
  }
  button.addEventListener("click", () => openMenu(button, name, entries));
  button.hidden = false;
  if (user.role !== "viewer") return;
  document.documentElement.classList.add("dm-viewer");
  byId("dm-viewer-note").textContent = VIEWER_NOTE;
  // The settings of a conversation can be read, and are not the reader's to change.
  for (const part of document.querySelectorAll("#dm-settings .form, #dm-prompt-about, #dm-reset")) part.inert = true;
}

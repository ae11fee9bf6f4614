// The account menu in the header.

import { signOut } from "../../shared/api.js";
import { openAppearance } from "../../shared/appearance.js";

/**
 * @param {import("../../components/header/header.js").Header} header
 * @param {import("../../shared/page_options.js").PageOptions} options
 * @param {object} host
 * @param {(error: unknown) => void} host.reportError  called when signing out fails
 * @param {() => void} host.listShortcuts
 */
export function setUpAccountMenu(header, { accounts, user }, { reportError, listShortcuts }) {
  /** @param {string} place */
  const goTo = (place) => () => location.assign(place);
  const entries = [
    { name: "Desk", iconName: "desk", action: goTo("/desk") },
    { name: "Appearance", iconName: "sliders", action: () => openAppearance() },
    { name: "Keyboard shortcuts", iconName: "tool", action: listShortcuts },
  ];
  if (!accounts) {
    header.setMenu("Menu", "Menu", entries);
    return;
  }
  entries.unshift({ name: "Cases", iconName: "canned", action: goTo("/desk/cases") });
  entries.unshift({ name: `Account (${user.name})`, iconName: "person", action: goTo("/account") });
  entries.push({ name: "Sign out", iconName: "leave", action: () => signOut().catch(reportError) });
  const name = `${user.name} (${user.role})`;
  header.setMenu(name, `Signed in as ${name}`, entries);
}

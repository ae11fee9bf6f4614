// The account menu in the header.

import { signOut } from "../../shared/api.js";

/**
 * @param {import("../../components/header/header.js").Header} header
 * @param {import("../../shared/page_options.js").PageOptions} options
 * @param {(error: unknown) => void} onError  called when signing out fails
 */
export function setUpAccountMenu(header, { accounts, user }, onError) {
  /** @param {string} place */
  const goTo = (place) => () => location.assign(place);
  const entries = [{ name: "Desk", iconName: "desk", action: goTo("/desk") }];
  if (!accounts) {
    header.setMenu("Desk", "Desk", entries);
    return;
  }
  entries.unshift({ name: `Account (${user.name})`, iconName: "person", action: goTo("/account") });
  entries.push({ name: "Sign out", iconName: "leave", action: () => signOut().catch(onError) });
  const name = `${user.name} (${user.role})`;
  header.setMenu(name, `Signed in as ${name}`, entries);
}

// The account menu in the header.

import { signOut } from "../../shared/api.js";

// `options`: the page's options. `onError(error)` is called when signing out fails.
export function setUpAccountMenu(header, { accounts, user }, onError) {
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

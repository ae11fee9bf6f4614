// The identity of an account at the sign-in provider, which an admin links and unlinks.

import { make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button, field } from "./controls.js";
import { oneAtATime } from "./desk.js";

/** @import { PersonIdentity } from "../../shared/api_types.js" */

/**
 * What an admin sees of an account's identity, with what changes it, and the element that comes first for the keyboard.
 * @param {string} name  of the account
 * @param {PersonIdentity} linked
 * @param {{link: (subject: string) => Promise<unknown>, unlink: () => Promise<unknown>}} acts  refused with an error, which is shown here
 */
export function identityPanel(name, { provider, identity }, { link, unlink }) {
  const trouble = make("div");
  const run = oneAtATime(trouble);
  /** @param {(Node | string)[]} parts */
  const panel = (...parts) => make("section", { class: "dk-identity", "aria-label": `${name} at ${provider}`, tabindex: "-1" }, ...parts, trouble);
  if (identity) {
    const { subject, label, created_at: since } = identity;
    const shown = label === subject ? "" : ` as ${label}`;
    const element = panel(
      make("p", { dir: "auto" }, `${name} can sign in with ${provider}${shown}, since ${moment(since)}. The id there is ${subject}.`),
      make("p", { class: "dm-hint" }, "Unlinking ends the sessions that began there. The account stays, with its password."),
      button(`Unlink ${provider}`, () => run(unlink), { kind: "dm-danger" }),
    );
    return { element, first: element }; // not the button: the Enter that has linked it must not unlink it
  }
  const subject = make("input", { maxlength: "255", required: true, autocomplete: "off", spellcheck: "false" });
  const hint = `The id that ${provider} has for this user: “sub” in their ID token. A name or an e-mail address is not enough.`;
  const send = make("button", { type: "submit", class: "dm-button dm-primary" }, `Link ${provider}`);
  const form = make("form", { class: "dm-stack" }, field(`Id at ${provider}`, subject, hint), send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = subject.value.trim();
    if (wanted) run(() => link(wanted));
  });
  const text = `${name} can’t sign in with ${provider} yet. Their first sign-in there makes an account of its own, unless you link it to this one before.`;
  return { element: panel(make("p", { dir: "auto" }, text), form), first: subject };
}

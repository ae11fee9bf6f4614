// The identity of an account at the sign-in provider, which an admin links and unlinks.

import { make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button, field } from "./controls.js";

/** @import { PersonIdentity } from "../../shared/api_types.js" */

/**
 * What an admin sees of an account's identity, with what changes it.
 * @param {string} name  of the account
 * @param {PersonIdentity} linked
 * @param {{link: (subject: string) => Promise<unknown>, unlink: () => Promise<unknown>}} acts
 */
export function identityPanel(name, { provider, identity }, { link, unlink }) {
  if (identity) {
    const { subject, label, created_at: since } = identity;
    const shown = label === subject ? "" : ` as ${label}`;
    return [
      make("p", { dir: "auto" }, `${name} can sign in with ${provider}${shown}, since ${moment(since)}. The id there is ${subject}.`),
      make("p", { class: "dm-hint" }, "Unlinking ends the sessions that began there. The account stays, with its password."),
      button(`Unlink ${provider}`, unlink, { kind: "dm-danger" }),
    ];
  }
  const subject = make("input", { maxlength: "255", required: true, autocomplete: "off", spellcheck: "false" });
  const hint = `The id that ${provider} has for this user: “sub” in their ID token. A name or an e-mail address is not enough.`;
  const send = make("button", { type: "submit", class: "dm-button dm-primary" }, `Link ${provider}`);
  const form = make("form", { class: "dk-filters" }, field(`Id at ${provider}`, subject, hint), send);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled || !subject.value.trim()) return;
    send.disabled = true;
    await link(subject.value.trim());
    send.disabled = false; // where it was refused
  });
  const text = `${name} can’t sign in with ${provider} yet. Their first sign-in there makes an account of its own, unless you link it to this one before.`;
  return [make("p", { dir: "auto" }, text), form];
}

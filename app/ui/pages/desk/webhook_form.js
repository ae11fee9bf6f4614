// The form of a webhook's settings.

import { make, uniqueId } from "../../shared/dom.js";
import { check, field } from "./controls.js";
import { eventLabel, inOfferedOrder, webhookValues } from "./webhook_text.js";

/** @import { WebhookView } from "../../shared/api_types.js" */
/** @import { Inbox } from "../cases/types.js" */

/**
 * The form, and what it holds. `read` throws an InputError.
 * @param {WebhookView | null} given  null: a new webhook
 * @param {string[]} events  all that a webhook can be told
 * @param {Inbox[]} inboxes
 */
export function webhookForm(given, events, inboxes) {
  const name = make("input", { maxlength: "100", autocomplete: "off", dir: "auto", value: given?.name ?? "" });
  const url = make("input", { type: "url", required: true, maxlength: "2000", autocomplete: "off", spellcheck: "false", dir: "ltr", placeholder: "https://crm.example.com/deskmate", value: given?.url ?? "" });
  const inbox = make("select", {}, make("option", { value: "" }, "All inboxes"), ...inboxes.map(({ id, name: title }) => make("option", { value: id, selected: id === given?.inbox_id }, title)));
  const told = given?.events ?? [];
  const group = uniqueId("dk-events");
  const all = check("Everything, also what later versions add", told.length === 0, { type: "radio", name: group });
  const some = check("Only this:", told.length > 0, { type: "radio", name: group });
  const boxes = inOfferedOrder(events).map((event) => check(eventLabel(event), told.includes(event), { value: event }));
  const choice = make("div", { class: "dk-events" }, ...boxes.map(({ element }) => element));
  const show = () => {
    choice.hidden = all.input.checked;
  };
  for (const { input } of [all, some]) input.addEventListener("change", show);
  show();
  return {
    name,
    element: make(
      "div",
      { class: "dk-inbox-fields" },
      field("Name", name, "For you and other admins. Without one it is called by its address."),
      field("Address", url, "Where requests are sent. Addresses of your own network need APP_EGRESS_ALLOW."),
      field("Cases of", inbox),
      make("fieldset", { class: "dk-group" }, make("legend", { class: "dm-label" }, "It is told when"), all.element, some.element, choice, make("p", { class: "dm-hint" }, "Internal notes are never told.")),
    ),
    read: () => webhookValues({ name: name.value, url: url.value, inboxId: inbox.value, isAll: all.input.checked, chosen: boxes.filter(({ input }) => input.checked).map(({ input }) => input.value) }),
  };
}

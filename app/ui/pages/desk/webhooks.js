// Webhooks: addresses that are told what happens to cases. A list, and next to it the selected one with its deliveries.

import { request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { button, copyField } from "./controls.js";
import { oneAtATime, problem, register } from "./desk.js";
import { Deliveries } from "./webhook_deliveries.js";
import { webhookForm } from "./webhook_form.js";
import { aboutWebhook, stateOf, stateText } from "./webhook_text.js";

/** @import { Viewer, WebhookList, WebhookView } from "../../shared/api_types.js" */
/** @import { Inbox } from "../cases/types.js" */

/** @param {WebhookView} webhook */
const path = ({ id }) => `/api/webhooks/${encodeURIComponent(id)}`;

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  place.append(make("p", { class: "dk-lead" }, "A webhook tells another program what happens to cases, such as a shop, a chat of your team or your own reports. Each request is signed, and tried again for most of a day."));
  if (viewer.name === null) {
    place.append(make("p", { class: "dm-notice" }, "Webhooks tell of cases, and cases need accounts: this desk has a single user. Set APP_ACCOUNTS=true to turn them on."));
    return undefined;
  }
  const list = make("ul", { class: "dk-list", "aria-label": "Webhooks" });
  const work = make("div", { class: "dk-work" });
  const create = button("New webhook", () => open(null), { kind: "dm-primary" });
  create.disabled = true; // until the inboxes and events that the form offers are there
  place.append(make("div", { class: "dk-two" }, make("div", { class: "dk-side" }, create, list), work));
  /** @type {WebhookView[]} */
  let webhooks = [];
  /** @type {string[]} */
  let events = [];
  /** @type {Inbox[]} */
  let inboxes = [];
  /** @type {string | null} */
  let selected = null;
  /** @type {Deliveries | null} */
  let deliveries = null;
  let showState = () => {};

  /** @param {string | null} id */
  const find = (id) => webhooks.find((each) => each.id === id) ?? null;

  async function load() {
    /** @type {WebhookList} */
    const listed = await request("GET", "/api/webhooks");
    ({ webhooks, events } = listed);
    drawList();
    showState();
  }

  function drawList() {
    const hadFocus = list.contains(document.activeElement);
    list.replaceChildren(
      ...webhooks.map((webhook) =>
        make(
          "li",
          {},
          make("button", { type: "button", class: "dm-option", "aria-current": webhook.id === selected ? "true" : null, onclick: () => open(webhook.id) }, make("strong", { dir: "auto" }, webhook.name), make("span", { class: `dk-state dk-state-${stateOf(webhook)}` }, aboutWebhook(webhook))),
        ),
      ),
    );
    if (webhooks.length === 0) list.replaceChildren(make("li", { class: "dm-hint" }, "There are no webhooks yet."));
    if (hadFocus) /** @type {HTMLElement | null} */ (list.querySelector("[aria-current]"))?.focus({ preventScroll: true });
  }

  /** Shows a webhook, or the form of a new one. @param {string | null} id @param {{moveFocus?: boolean, secret?: string}} options  `secret`: it was just made */
  function open(id, { moveFocus = true, secret } = {}) {
    deliveries?.close();
    deliveries = null;
    showState = () => {};
    selected = id;
    drawList();
    const webhook = find(id);
    const form = webhookForm(webhook, events, inboxes);
    const trouble = make("div");
    const saved = make("p", { class: "dm-hint", role: "status" });
    const run = oneAtATime(trouble);
    const save = make("button", { type: "submit", class: "dm-button dm-primary" }, webhook ? "Save" : "Create");
    const title = make("h2", { dir: "auto" }, webhook ? webhook.name : "New webhook");
    const element = make("form", {}, form.element, trouble, make("div", { class: "dm-buttons" }, save, saved));
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      saved.textContent = "";
      run(async () => {
        const values = form.read();
        if (webhook) {
          /** @type {WebhookView} */
          const changed = await request("PATCH", path(webhook), values);
          await load();
          title.textContent = changed.name;
          saved.textContent = "Saved.";
          return;
        }
        const made = await request("POST", "/api/webhooks", values);
        await load();
        announce(`The webhook ${made.webhook.name} was created.`);
        open(made.webhook.id, { secret: made.secret });
      });
    });
    work.replaceChildren(title, ...(webhook ? [state(webhook)] : []), ...(secret ? [newSecret(secret)] : []), element, ...(webhook ? [make("h2", {}, "Deliveries"), shownDeliveries(webhook), ...signing(webhook), ...removal(webhook)] : []));
    if (!moveFocus) return;
    if (secret) focusOn(work);
    else form.name.focus({ preventScroll: true });
    work.scrollIntoView({ block: "nearest" });
  }

  /** The state in sentences, a test, and the switch. @param {WebhookView} webhook */
  function state({ id }) {
    const text = make("p", { class: "dk-webhook-state", role: "status" });
    const trouble = make("div");
    const run = oneAtATime(trouble);
    const test = button("Send a test", () =>
      run(async () => {
        await request("POST", `${path({ ...current(), id })}/test`, {});
        announce("A test is sent. Its answer is under Deliveries.");
        await deliveries?.refresh();
      }), { kind: "dm-small" });
    const turn = button("", () =>
      run(async () => {
        const { enabled } = current();
        await request("PATCH", path(current()), { enabled: !enabled });
        await load();
        announce(enabled ? "The webhook is off." : "The webhook is on.");
        await deliveries?.refresh();
      }), { kind: "dm-small" });
    const current = () => /** @type {WebhookView} */ (find(id));
    showState = () => {
      const webhook = find(id);
      if (!webhook) return;
      const now = stateText(webhook);
      if (text.textContent !== now) text.textContent = now;
      text.className = `dk-webhook-state dk-state-${stateOf(webhook)}`;
      turn.textContent = webhook.enabled ? "Switch off" : "Switch on";
      test.hidden = !webhook.enabled;
      deliveries?.draw();
    };
    showState();
    return make("div", { class: "dk-webhook-head" }, text, make("div", { class: "dm-buttons" }, turn, test), trouble);
  }

  /** @param {WebhookView} webhook */
  function shownDeliveries(webhook) {
    deliveries = new Deliveries(path(webhook), { isOn: () => find(webhook.id)?.enabled ?? false, changed: () => load().catch(() => undefined) });
    deliveries.refresh();
    return deliveries.element;
  }

  /** @param {string} secret */
  const newSecret = (secret) => make("div", { class: "dk-secret" }, make("p", { class: "dm-notice" }, "Keep this secret where the requests are received: it proves that they come from here. It won’t be shown again."), copyField("Secret", secret));

  /** @param {HTMLElement} element */
  function focusOn(element) {
    const shown = /** @type {HTMLInputElement | null} */ (element.querySelector(".dk-secret input"));
    shown?.focus();
    shown?.select();
  }

  /** @param {WebhookView} webhook */
  function signing(webhook) {
    const shown = make("div");
    const run = oneAtATime(shown);
    const renew = button("New secret", () =>
      run(async () => {
        const { secret } = await request("POST", `${path(webhook)}/secret`, {});
        work.querySelector(".dk-secret")?.remove(); // it is the one before now
        shown.replaceChildren(newSecret(secret), make("p", { class: "dm-hint" }, "For a day, requests are signed with the secret before, too."));
        focusOn(shown);
      }),
    );
    return [make("h2", {}, "Secret"), make("p", { class: "dm-hint" }, "The receiver checks with it that a request comes from this desk, as docs/webhooks.md shows. A new one replaces it; the one before signs for another day."), make("div", { class: "dm-buttons" }, renew), shown];
  }

  /** @param {WebhookView} webhook */
  function removal(webhook) {
    const asked = make("div");
    const run = oneAtATime(asked);
    const remove = button("Delete webhook", () => {
      const { name, num_pending: pending } = find(webhook.id) ?? webhook;
      const cancel = button("Cancel", () => {
        asked.replaceChildren();
        remove.focus();
      });
      const go = button(`Delete ${name} for good`, () =>
        run(async () => {
          await request("DELETE", path(webhook));
          deliveries?.close();
          deliveries = null;
          selected = null;
          work.replaceChildren();
          await load();
          announce(`The webhook ${name} was deleted.`);
          create.focus();
        }), { kind: "dm-primary dm-danger" });
      asked.replaceChildren(make("p", { class: "dm-notice" }, `This deletes ${name}, its secret and the list of its deliveries${pending > 0 ? `; ${plural(pending, "delivery", "deliveries")} will not be made` : ""}. It can’t be undone.`), make("div", { class: "dm-buttons" }, cancel, go));
      cancel.focus();
    }, { kind: "dm-danger" });
    return [make("h2", {}, "Delete"), make("div", { class: "dm-buttons" }, remove), asked];
  }

  try {
    const [{ inboxes: found }] = await Promise.all([/** @type {Promise<{inboxes: Inbox[]}>} */ (request("GET", "/api/inboxes")), load()]);
    inboxes = found;
  } catch (error) {
    work.replaceChildren(problem(error));
    return undefined;
  }
  create.disabled = false;
  if (webhooks.length) open(webhooks[0].id, { moveFocus: false });
  return () => {
    deliveries?.close();
    deliveries = null;
  };
}

register({ id: "webhooks", title: "Webhooks", roles: ["admin"], show });

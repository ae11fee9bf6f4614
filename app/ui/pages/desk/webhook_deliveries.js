// The deliveries of a webhook: what became of each, and sending one again.

import { query, request } from "../../shared/api.js";
import { announce, make, replaceChildren } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button } from "./controls.js";
import { oneAtATime, problem } from "./desk.js";
import { deliveryText, eventLabel, isUnderWay, mergeDeliveries } from "./webhook_text.js";

/** @import { DeliveryList, DeliveryView } from "../../shared/api_types.js" */

const PAGE = 20;
const LOOK_MS = 2500; // between two looks while a delivery is under way: the server sends within 2 s

export class Deliveries {
  /** @type {DeliveryView[]} */
  #shown = [];
  /** @type {Map<string, {told: string, item: HTMLLIElement}>} */
  #items = new Map();
  /** @type {string | null} */
  #next = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #isClosed = false;

  /**
   * @param {string} path  of the webhook
   * @param {{isOn: () => boolean, changed: () => unknown}} host  `changed`: the webhook's state may be another one
   */
  constructor(path, host) {
    this.path = path;
    this.host = host;
    this.trouble = make("div");
    this.run = oneAtATime(this.trouble);
    this.list = make("ul", { class: "dk-deliveries", "aria-label": "Deliveries" });
    this.empty = make("p", { class: "dm-hint", hidden: true }, "Nothing was sent yet. What was sent or given up is kept for 30 days.");
    this.more = button("Show more", () => this.run(() => this.#load(this.#next)), { hidden: true });
    this.element = make("div", {}, this.trouble, this.list, this.empty, this.more);
  }

  /** Loads the latest ones. Looks again while one is under way. */
  async refresh() {
    clearTimeout(this.#timer);
    try {
      await this.#load(null);
    } catch (error) {
      if (!this.#isClosed) this.trouble.replaceChildren(problem(error));
    }
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  /** @param {string | null} cursor */
  async #load(cursor) {
    /** @type {DeliveryList} */
    const page = await request("GET", `${this.path}/deliveries?${query({ cursor, limit: PAGE })}`);
    if (this.#isClosed) return;
    if (cursor !== null || this.#shown.length === 0) this.#next = page.next;
    this.#shown = mergeDeliveries(this.#shown, page.deliveries);
    this.draw();
    this.#lookAgain();
  }

  #lookAgain() {
    clearTimeout(this.#timer);
    if (!this.host.isOn() || !this.#shown.some((each) => isUnderWay(each, Date.now()))) return;
    this.#timer = setTimeout(async () => {
      await this.refresh();
      if (!this.#isClosed) this.host.changed();
    }, LOOK_MS);
  }

  draw() {
    replaceChildren(this.list, this.#shown.map((each) => this.#item(each)));
    this.empty.hidden = this.#shown.length > 0;
    this.more.hidden = this.#next === null;
  }

  // What has not changed stays as it is, with the focus in it.
  /** @param {DeliveryView} delivery */
  #item(delivery) {
    const text = deliveryText(delivery, this.host.isOn());
    const told = `${delivery.status} ${text}`;
    const there = this.#items.get(delivery.id);
    if (there?.told === told) return there.item;
    const { id, event, case_id: caseId, created_at: at, status } = delivery;
    const item = there?.item ?? make("li");
    const hadFocus = item.contains(document.activeElement);
    const again = button(status === "pending" ? "Send now" : "Send again", () => this.#sendAgain(id), { kind: "dm-small", "aria-label": `${status === "pending" ? "Send now" : "Send again"}: ${eventLabel(event)}, ${moment(at)}` });
    item.className = `dk-delivery dk-delivery-${status}`;
    item.replaceChildren(
      make(
        "div",
        {},
        make("p", {}, make("strong", {}, eventLabel(event)), " ", make("time", { datetime: at, class: "dm-hint" }, moment(at)), ...(caseId ? [" ", make("a", { href: `/desk/cases#all/${encodeURIComponent(caseId)}` }, "Case")] : [])),
        make("p", { class: "dk-delivery-state", dir: "auto" }, text),
      ),
      again,
    );
    if (hadFocus) again.focus({ preventScroll: true });
    this.#items.set(id, { told, item });
    return item;
  }

  /** @param {string} id */
  #sendAgain(id) {
    return this.run(async () => {
      await request("POST", `${this.path}/deliveries/${encodeURIComponent(id)}/replay`, {});
      announce(this.host.isOn() ? "It is sent again." : "It will be sent once the webhook is switched on.");
      await this.refresh();
      this.host.changed();
    });
  }
}

// The review queue: disliked replies, and questions left unanswered.

import { query, request } from "../../shared/api.js";
import { reasonName } from "../../components/chat/feedback.js";
import { announce, make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button, DayRange, field, latest } from "./controls.js";
import { zone } from "./days.js";
import { isAdmin, problem, register } from "./desk.js";
import { draftBlock, UsedDrafts } from "./used_drafts.js";

/** @import { Exchange, ExchangeMessage, GivenOpinion, ReviewItem, ReviewItemPage, Viewer } from "../../shared/api_types.js" */

const FLAGS = {
  low_rated: "Disliked",
  failed: "Failed",
  interrupted: "Interrupted",
  empty: "Empty",
  asked_again: "Regenerated",
};
const STATES = [["open", "To review"], ["reviewed", "Reviewed"], ["all", "All"]];
const PAGE = 25;

/** @param {string} id */
const path = (id) => `/api/desk/review/${encodeURIComponent(id)}`;

/** @param {GivenOpinion} given */
function opinion({ by, rating, reasons, comment, at }) {
  const why = reasons.map((reason) => reasonName(rating, reason)).join(", ");
  const line = make("p", { class: `dk-opinion dk-${rating}` });
  line.append(make("strong", {}, rating === "up" ? "Liked" : "Disliked"), ` by ${by}, ${moment(at)}${why ? `: ${why}` : ""}`);
  if (comment) line.append(make("q", {}, comment));
  return line;
}

/** @param {string} who @param {string} text @param {{mark?: boolean, note?: string, reasoning?: string}} options */
function messageBlock(who, text, { mark = false, note = "", reasoning = "" } = {}) {
  const thoughts = make("details", { class: "dk-thoughts" }, make("summary", {}, "Thoughts"), make("div", { class: "dk-said-text" }, reasoning));
  return make(
    "div",
    { class: `dk-said${mark ? " dk-it" : ""}` },
    make("p", { class: "dk-said-who" }, note ? `${who} · ${note}` : who),
    reasoning ? thoughts : null,
    make("div", { class: "dk-said-text" }, text || "(no text)"),
  );
}

/** @type {Record<string, string>} */
const STATUS_NOTES = { error: "failed", interrupted: "interrupted", stopped: "stopped" };

/** @param {Exchange} shown */
export function exchange({ item, before, reply, others, after, has_earlier, drafts = [] }) {
  /** @param {ExchangeMessage} message @param {{mark?: boolean, note?: string}} extra */
  const one = (message, extra = {}) =>
    messageBlock(message.role === "user" ? item.user : "Reply", message.content, { note: STATUS_NOTES[message.status] ?? "", reasoning: message.reasoning, ...extra });
  const parts = [];
  if (has_earlier) parts.push(make("p", { class: "dm-hint" }, "Earlier messages aren't shown."));
  parts.push(...before.map((message) => one(message)), one(reply, { mark: true }));
  for (const other of others) parts.push(one(other, { note: other.id > reply.id ? "later version" : "earlier version" }));
  if (after.length) parts.push(make("p", { class: "dm-hint" }, "Next messages"), ...after.map((message) => one(message)));
  if (drafts.length) parts.push(make("p", { class: "dm-hint" }, "Drafts of replies to the customer that were used in this conversation"), ...drafts.map((draft) => draftBlock(draft)));
  return make("div", { class: "dk-exchange" }, ...parts);
}

/** @param {ReviewItem} item @param {Viewer} viewer @param {() => unknown} changed */
function card(item, viewer, changed) {
  const flags = item.flags.map((flag) => make("span", { class: `dk-flag dk-flag-${flag}` }, FLAGS[flag]));
  const around = make("div", { hidden: true });
  const open = button("Show the conversation", () => toggle(), { "aria-expanded": "false" });
  const { reviewed_at: reviewedAt } = item;
  const reviewed = reviewedAt !== null;
  const actions = make("div", { class: "dm-buttons" }, open);
  if (isAdmin(viewer)) {
    const mark = button(reviewed ? "Mark as not reviewed" : "Mark as reviewed", async () => {
      mark.disabled = true;
      try {
        await request("PUT", path(item.message_id), { reviewed: !reviewed });
      } catch (error) {
        mark.disabled = false;
        element.append(problem(error));
        return;
      }
      announce(reviewed ? "Marked as not reviewed." : "Marked as reviewed.");
      changed();
    }, { kind: reviewed ? "" : "dm-primary" });
    actions.append(mark);
  }
  let reading = false;
  async function toggle() {
    if (!around.hidden) {
      around.hidden = true;
      open.setAttribute("aria-expanded", "false");
      open.textContent = "Show the conversation";
      return;
    }
    if (reading) return;
    reading = true; // the button stays enabled, because disabling it would drop its focus
    try {
      around.replaceChildren(exchange(await request("GET", path(item.message_id))));
    } catch (error) {
      around.replaceChildren(problem(error));
    }
    reading = false;
    around.hidden = false;
    open.setAttribute("aria-expanded", "true");
    open.textContent = "Hide the conversation";
  }
  const by = item.reviewed_by ? ` by ${item.reviewed_by}` : "";
  const element = make(
    "article",
    { class: "dm-card dk-card", "aria-label": `Reply in “${item.conversation_title}”` },
    make("p", { class: "dk-card-head" }, ...flags, make("span", {}, `${item.user} · ${moment(item.created_at)}${item.model ? ` · ${item.model}` : ""}`)),
    make("p", { class: "dk-question" }, item.question),
    make("p", { class: "dk-reply" }, item.reply || "(no text)"),
    item.error ? make("p", { class: "dm-alert" }, item.error) : null,
    ...item.opinions.map(opinion),
    reviewed ? make("p", { class: "dm-hint" }, `Reviewed${by}, ${moment(reviewedAt)}.`) : null,
    actions,
    around,
  );
  return element;
}

/** @param {HTMLElement} place @param {Viewer} viewer */
function show(place, viewer) {
  const list = make("div", { class: "dk-cards" });
  const more = button("Show more", () => load(true), { hidden: true });
  const chosen = new Set();
  const runLatest = latest();
  /** @type {string | null} */
  let cursor = null;
  const state = make("select", {}, ...STATES.map(([value, name]) => make("option", { value }, name)));
  const drafts = new UsedDrafts();
  const range = new DayRange(() => loadAll());
  state.addEventListener("change", () => load());
  const chips = Object.entries(FLAGS).map(([flag, name]) => {
    const chip = button(name, () => {
      if (!chosen.delete(flag)) chosen.add(flag);
      chip.setAttribute("aria-pressed", String(chosen.has(flag)));
      load();
    }, { class: "dm-chip", "aria-pressed": "false" });
    return chip;
  });
  range.element.append(field("Show", state));

  function load(further = false) {
    const parameters = query({ ...range.value, zone, state: state.value, flag: [...chosen], limit: PAGE, cursor: further ? cursor : null });
    place.setAttribute("aria-busy", "true");
    more.disabled = true;
    return runLatest(
      () => /** @type {Promise<ReviewItemPage>} */ (request("GET", `/api/desk/review?${parameters}`)),
      ({ items, next_cursor: next }) => {
        const cards = items.map((item) => card(item, viewer, () => load()));
        if (further) list.append(...cards);
        else list.replaceChildren(...cards);
        if (!list.children.length) list.replaceChildren(make("p", { class: "dk-empty" }, "No matching replies in this date range."));
        cursor = next;
        more.hidden = next === null;
        more.disabled = false;
        place.removeAttribute("aria-busy");
      },
      (error) => {
        list.replaceChildren(problem(error));
        more.hidden = true;
        place.removeAttribute("aria-busy");
      },
    );
  }
  const loadAll = async () => {
    await Promise.all([load(), drafts.load({ ...range.value, zone })]);
  };
  place.append(
    make("p", { class: "dk-lead" }, "Replies that users disliked, and questions left unanswered: the reply failed, was interrupted, is empty, or was regenerated."),
    range.element,
    make("div", { class: "dk-filters", role: "group", "aria-label": "Reasons" }, ...chips),
    list,
    more,
    drafts.element,
  );
  return loadAll();
}

register({ id: "review", title: "Review", roles: ["admin", "viewer"], show });

// Gaps of the knowledge base: questions that the chosen sources left unanswered, grouped, most frequent first.

import { query, request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { moment, plural } from "../../shared/formats.js";
import { conversationUrl } from "../chat/address.js";
import { button, field, latest } from "./controls.js";
import { isAdmin, problem, register } from "./desk.js";
import { passageItem, REASONS } from "./knowledge_texts.js";
import { questionMarker } from "./questions.js";
import { exchange } from "./review.js";

/** @import { CollectionList, GapGroup, GapList, GapQuestion, Passage, Passages, Viewer } from "../../shared/api_types.js" */

const STATES = [["open", "Open"], ["done", "Done"]];
const MAX_QUERY_CHARS = 2000;

/** @param {GapQuestion} question */
function questionItem({ message_id: id, conversation_id: conversation, question, user, at, reasons, own, in_review: inReview }) {
  const around = make("div", { hidden: true });
  const open = button("Show the conversation", toggle, { kind: "dm-small", "aria-expanded": "false" });
  async function toggle() {
    if (around.hidden && !around.hasChildNodes()) {
      try {
        around.replaceChildren(exchange(await request("GET", `/api/desk/review/${encodeURIComponent(id)}`)));
      } catch (error) {
        around.replaceChildren(problem(error));
      }
    }
    around.hidden = !around.hidden;
    open.setAttribute("aria-expanded", String(!around.hidden));
    open.textContent = around.hidden ? "Show the conversation" : "Hide the conversation";
  }
  return make(
    "li",
    {},
    make("p", { class: "dk-reply", dir: "auto" }, question),
    make("p", { class: "dm-hint" }, [user, moment(at), ...reasons.map((reason) => REASONS[reason])].join(" · ")),
    own ? make("a", { class: "dm-button dm-small", href: conversationUrl(conversation, id) }, "Open the conversation") : inReview ? open : null,
    around,
  );
}

/**
 * @param {GapGroup} group
 * @param {{viewer: Viewer, names: Map<string, string>, isDone: boolean, changed: () => unknown}} options
 */
function card(group, { viewer, names, isDone, changed }) {
  const { question, count, last_at: last, collections, message_ids: ids, questions } = group;
  const reasons = [...new Set(questions.flatMap((one) => one.reasons))];
  const usable = collections.filter((id) => names.has(id));
  const found = make("div", { class: "dk-found", role: "status" });
  const trouble = make("div");
  const asked = question.slice(0, MAX_QUERY_CHARS);
  /** Admins may edit every collection, and viewers none. @param {Passage} passage */
  const marker = (passage) => (isAdmin(viewer) ? questionMarker(asked, passage, () => undefined) : []);
  const runSearch = latest();
  const again = button("Search again", () =>
    runSearch(
      () => /** @type {Promise<Passages>} */ (request("GET", `/api/kb/search?${query({ q: asked, collection: usable, limit: 5 })}`)),
      ({ passages }) =>
        found.replaceChildren(
          make("p", {}, passages.length === 0 ? "Nothing is found now either." : `${plural(passages.length, "passage")} found now, best first. Whether they answer the question is yours to judge.`),
          make("ol", { class: "dk-passages" }, ...passages.map((passage) => passageItem(passage, ...marker(passage)))),
        ),
      (error) => found.replaceChildren(problem(error)),
    ),
  );
  const actions = make("div", { class: "dm-buttons" }, again);
  if (isAdmin(viewer)) {
    let isMarking = false;
    const mark = button(isDone ? "Put back" : "Done", async () => {
      if (isMarking) return;
      isMarking = true; // the button stays enabled, because disabling it would drop its focus
      try {
        await request("PUT", "/api/desk/gaps", { message_ids: ids, done: !isDone });
      } catch (error) {
        isMarking = false;
        trouble.replaceChildren(problem(error));
        return;
      }
      announce(isDone ? "The group is open again." : "Done. The group returns if the question is asked again.");
      changed();
    }, { kind: isDone ? "" : "dm-primary" });
    actions.append(mark);
  }
  const more = count > questions.length ? make("p", { class: "dm-hint" }, `And ${count - questions.length} more.`) : null;
  return make(
    "article",
    { class: "dm-card dk-card dk-gap", "aria-label": question.slice(0, 100) },
    make("p", { class: "dk-card-head" }, ...reasons.map((reason) => make("span", { class: "dk-flag" }, REASONS[reason])), make("span", {}, [count === 1 ? "Asked once" : `Asked ${count} times`, `last ${moment(last)}`, ...usable.map((id) => names.get(id))].join(" · "))),
    make("p", { class: "dk-question", dir: "auto" }, question),
    make("details", { class: "dk-history" }, make("summary", {}, plural(count, "question")), make("ul", { class: "dk-asked" }, ...questions.map(questionItem)), more),
    trouble,
    actions,
    found,
  );
}

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  const list = make("div", { class: "dk-cards" });
  const state = make("select", {}, ...STATES.map(([value, name]) => make("option", { value }, name)));
  const runLatest = latest();
  const { collections } = /** @type {CollectionList} */ (await request("GET", "/api/kb/collections"));
  const names = new Map(collections.map(({ id, name }) => [id, name]));
  state.addEventListener("change", () => load());

  function load() {
    const chosen = state.value;
    place.setAttribute("aria-busy", "true");
    return runLatest(
      () => /** @type {Promise<GapList>} */ (request("GET", `/api/desk/gaps?${query({ state: chosen })}`)),
      ({ groups, has_more: hasMore }) => {
        const focused = list.contains(document.activeElement);
        list.replaceChildren(...groups.map((group) => card(group, { viewer, names, isDone: chosen === "done", changed: load })));
        if (groups.length === 0) list.replaceChildren(make("p", { class: "dk-empty" }, chosen === "done" ? "Nothing is marked as done." : "No question is open. Questions appear here when a chat's sources don't answer them."));
        if (hasMore) list.append(make("p", { class: "dm-hint" }, "Older questions are left out."));
        if (focused) state.focus(); // its card is gone
        place.removeAttribute("aria-busy");
      },
      (error) => {
        list.replaceChildren(problem(error));
        place.removeAttribute("aria-busy");
      },
    );
  }
  place.append(
    make("p", { class: "dk-lead" }, "Questions that a chat's sources left unanswered: nothing was found, the reply cites nothing of what was found, or it was disliked. Add a document that answers them under Knowledge."),
    make("div", { class: "dk-filters" }, field("Show", state)),
    list,
  );
  await load();
}

register({ id: "gaps", title: "Gaps", roles: ["admin", "viewer"], show });

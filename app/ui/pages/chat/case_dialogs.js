// Dialogs about a conversation or a support case: its summary, with links to the messages that it rests on, and a
// proposed article. A dialog that is closed stops the model.

import { api, errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { renderMarkdown } from "../../components/chat/markdown.js";
import { leftOutText, nameOf, splitByNumbers } from "./case_texts.js";

/** @import { writingRoutes } from "../../shared/api.js" */
/** @import { CaseReference, CaseSummary } from "../../shared/api_types.js" */

/** @typedef {{id: string, title: string, routes: ReturnType<typeof writingRoutes>}} WrittenCase */

/**
 * Opens a modal dialog, which a click on "Close", Esc or the browser's Back ends. Returns it with its body and a signal of
 * its end.
 * @param {string} title
 * @param {string} subtitle
 */
function open(title, subtitle) {
  const body = make("div", { class: "dm-case-body", "aria-live": "polite" });
  const close = make("button", { type: "button", class: "dm-button" }, "Close");
  const buttons = make("div", { class: "dm-buttons" }, close);
  const heading = make("h2", { id: "dm-case-title" }, title);
  const dialog = make("dialog", { class: "dm-dialog dm-case", "aria-labelledby": "dm-case-title" }, heading, make("p", { dir: "auto" }, subtitle), body, buttons);
  const closed = new AbortController();
  const { signal } = closed;
  // The second click of a double click may have been meant for a button that has just left its place.
  close.addEventListener("click", (event) => event.detail < 2 && dialog.close());
  addEventListener("popstate", () => dialog.close(), { signal });
  showDialog(dialog, close).then(() => closed.abort());
  return { dialog, body, buttons, signal };
}

/** @param {unknown} error */
const problem = (error) => make("p", { class: "dm-alert", role: "alert" }, errorMessage(error));

/**
 * Asks for the summary of a case and shows it.
 * @param {WrittenCase} of
 * @param {(messageId: string) => unknown} goTo
 */
export async function showSummary({ id, title, routes }, goTo) {
  const { dialog, body, signal } = open("Summary", title);
  body.replaceChildren(make("p", { class: "dm-case-waiting" }, "The model reads the case …"));
  /** @type {CaseSummary} */
  let summary;
  try {
    summary = await routes.summarise(id, signal);
  } catch (error) {
    body.replaceChildren(problem(error));
    return;
  }
  /** @param {CaseReference} reference */
  const link = ({ number, message_id: message, excerpt, ...reference }) =>
    make(
      "button",
      {
        type: "button",
        class: "dm-case-link",
        title: excerpt,
        "aria-label": `${nameOf(reference)} ${number}: ${excerpt.slice(0, 80)}`,
        onclick: () => {
          dialog.close();
          goTo(message);
        },
      },
      String(number),
    );
  const text = make("div", { class: "dm-markdown dm-case-text" });
  renderMarkdown(text, summary.text);
  linkNumbers(text, summary.messages, link);
  const list = make(
    "ol",
    { class: "dm-case-messages" },
    ...summary.messages.map((reference) => make("li", {}, link(reference), reference.internal ? make("em", {}, nameOf(reference)) : null, make("span", { dir: "auto" }, reference.excerpt))),
  );
  const notes = [summary.notice, leftOutText(summary)].filter(Boolean).map((note) => make("p", { class: "dm-case-note" }, note));
  const checked = summary.text ? [make("p", { class: "dm-case-note" }, `Written by the model from ${plural(summary.total - summary.left_out, "message")}. The numbers lead to messages, and do not prove that these say so.`)] : [];
  body.replaceChildren(...notes, ...(summary.text ? [text] : []), ...checked, list);
}

/**
 * Makes links of the numbers in square brackets, outside code.
 * @param {HTMLElement} element
 * @param {CaseReference[]} references
 * @param {(reference: CaseReference) => HTMLElement} link
 */
function linkNumbers(element, references, link) {
  const byNumber = new Map(references.map((reference) => [reference.number, reference]));
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) if (walker.currentNode instanceof Text && !walker.currentNode.parentElement?.closest("code, a")) texts.push(walker.currentNode);
  for (const node of texts) {
    const parts = splitByNumbers(node.data).map((part) => {
      const reference = typeof part === "number" ? byNumber.get(part) : undefined;
      return reference ? link(reference) : typeof part === "number" ? `[${part}]` : part;
    });
    if (parts.some((part) => typeof part !== "string")) node.replaceWith(...parts);
  }
}

/**
 * Asks where to propose an article made from a case, and proposes it.
 * @param {WrittenCase} of
 * @param {{from?: string, likely?: string[]}} [options]  from: what the article is made of; likely: ids of collections, of which
 *   the first that the user may edit is chosen
 */
export async function proposeArticle({ id, title, routes }, { from = "this conversation", likely = [] } = {}) {
  const { body, buttons, signal } = open("Propose an article", title);
  let collections;
  try {
    ({ collections } = await api.listCollections());
  } catch (error) {
    body.replaceChildren(problem(error));
    return;
  }
  const editable = collections.filter((collection) => collection.may_edit);
  if (editable.length === 0) {
    body.replaceChildren(make("p", {}, "You may not edit any collection of documents. Ask an admin for the right to edit one."));
    return;
  }
  const chosen = likely.find((id) => editable.some((collection) => collection.id === id)) ?? editable[0]?.id;
  const choice = make("select", { class: "dm-input", id: "dm-case-collection" }, ...editable.map((collection) => make("option", { value: collection.id, selected: collection.id === chosen }, collection.name)));
  const outcome = make("div");
  const go = make("button", { type: "button", class: "dm-button dm-primary" }, "Propose");
  let isRunning = false;
  go.addEventListener("click", async () => {
    if (isRunning) return; // a double click must not propose two articles
    isRunning = true;
    outcome.replaceChildren(make("p", { class: "dm-case-waiting" }, "The article is being written …"));
    try {
      const { article, notice } = await routes.proposeArticle(id, choice.value, signal);
      go.remove();
      body.replaceChildren(
        make("p", {}, "Proposed: ", make("strong", { dir: "auto" }, article.title), ". No search finds it until it is published."),
        ...(notice ? [make("p", { class: "dm-case-note" }, notice)] : []),
        make("p", {}, make("a", { href: `/desk#knowledge/${encodeURIComponent(article.collection)}` }, "Check, edit and publish it under Knowledge")),
      );
    } catch (error) {
      outcome.replaceChildren(problem(error));
      isRunning = false;
    }
  });
  body.replaceChildren(
    make("p", {}, `The question and the solution of ${from} become an article, which is not searched until it is published. Check it for names before that.`),
    make("label", { class: "dm-label", for: "dm-case-collection" }, "Collection"),
    choice,
    outcome,
  );
  buttons.append(go);
  choice.focus();
}

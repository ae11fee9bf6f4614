// Questions marked as answered by a passage: deskmate kb eval measures the search by them.

import { query, request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { button, latest } from "./controls.js";
import { oneAtATime, problem } from "./desk.js";

/** @import { MarkedQuestion, Passage, QuestionList } from "../../shared/api_types.js" */

/**
 * The button below a passage that a search has found, and the place of its outcome.
 * @param {string} question
 * @param {Passage} passage
 * @param {() => unknown} marked
 */
export function questionMarker(question, { document_id, version, start, end }, marked) {
  const outcome = make("div");
  const run = oneAtATime(outcome);
  const ask = async () => {
    /** @type {MarkedQuestion} */
    const { answer } = await request("POST", "/api/kb/questions", { question, document_id, version, start, end });
    outcome.replaceChildren(make("p", { class: "dm-hint", dir: "auto" }, `Marked: “${answer}”`));
    announce("Marked as an answer.");
    await marked();
  };
  const mark = button("Answers this question", () => run(ask), { kind: "dm-small" });
  return [mark, outcome];
}

/** The marked questions of a collection, with a download. */
export function questionList() {
  const list = make("ul", { class: "dk-asked" });
  const summary = make("summary");
  const download = make("a", { class: "dm-button dm-small", download: "questions.jsonl" }, "Download for deskmate kb eval");
  const trouble = make("div");
  const element = make("details", { class: "dk-history", hidden: true }, summary, download, trouble, list);
  const runLatest = latest();

  /** @param {string | null} collection  null: one that the user may not edit */
  function load(collection) {
    trouble.replaceChildren();
    download.href = `/api/kb/questions/file?${query({ collection })}`;
    return runLatest(
      async () => (collection === null ? { questions: [] } : /** @type {QuestionList} */ (await request("GET", `/api/kb/questions?${query({ collection })}`))),
      ({ questions }) => {
        summary.textContent = plural(questions.length, "marked question");
        element.hidden = questions.length === 0;
        list.replaceChildren(
          ...questions.map(({ id, question, answer, document }) => {
            const remove = button("Remove", async () => {
              try {
                await request("DELETE", `/api/kb/questions/${encodeURIComponent(id)}`);
                await load(collection);
                summary.focus();
              } catch (error) {
                trouble.replaceChildren(problem(error));
              }
            }, { kind: "dm-small dm-danger", "aria-label": `Remove the question ${question}` });
            return make("li", {}, make("p", { class: "dk-reply", dir: "auto" }, question), make("p", { class: "dm-hint", dir: "auto" }, `${answer} · ${document}`), remove);
          }),
        );
      },
      (error) => {
        element.hidden = false;
        trouble.replaceChildren(problem(error));
      },
    );
  }
  return { element, load };
}

// Proposed articles of a collection, for those who may edit it: check, edit, publish or discard.

import { query, request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button, field, latest } from "./controls.js";
import { oneAtATime, problem } from "./desk.js";

/** @import { ArticleList, ArticleView } from "../../shared/api_types.js" */

/**
 * @param {() => unknown} published  called after an article has become a document
 */
export function articleList(published) {
  const element = make("section", { class: "dk-articles", "aria-label": "Proposed articles", hidden: true });
  const list = make("div", { class: "dk-cards" });
  const title = make("h2", { tabindex: "-1" }, "Proposed articles");
  const runLatest = latest();
  element.append(title, make("p", { class: "dm-hint" }, "Made from resolved cases. No search finds them until they are published. Check for names before publishing."), list);

  /** @param {string | null} collection  null: of a collection that the user may not edit */
  function load(collection) {
    return runLatest(
      async () => (collection === null ? { articles: [] } : /** @type {ArticleList} */ (await request("GET", `/api/kb/articles?${query({ collection })}`))),
      ({ articles }) => {
        list.replaceChildren(...articles.map(card));
        element.hidden = articles.length === 0;
      },
      (error) => {
        list.replaceChildren(problem(error));
        element.hidden = false;
      },
    );
  }

  /** @param {ArticleView} article */
  function card({ id, title: name, body, author, created_at: at }) {
    const heading = make("input", { maxlength: "200", value: name, dir: "auto" });
    const text = make("textarea", { rows: "10", maxlength: "100000", dir: "auto" });
    text.value = body;
    const trouble = make("div");
    const path = `/api/kb/articles/${encodeURIComponent(id)}`;
    const run = oneAtATime(trouble);
    const values = () => ({ title: heading.value, body: text.value });
    /** @param {string} said */
    function leave(said) {
      item.remove();
      announce(said);
      element.hidden = list.children.length === 0;
      if (!element.hidden) title.focus();
    }
    const publish = button("Publish", () =>
      run(async () => {
        await request("POST", `${path}/publish`, values());
        leave(`${heading.value} was published.`);
        await published();
      }),
    { kind: "dm-primary", "aria-label": `Publish ${name}` });
    const save = button("Save", () => run(async () => {
      await request("PUT", path, values());
      announce("Saved.");
      trouble.replaceChildren(make("p", { class: "dm-hint" }, "Saved."));
    }), { "aria-label": `Save ${name}` });
    const discard = button("Discard", () => run(async () => {
      if (!confirm(`Discard “${name}”? It can't be undone.`)) return;
      await request("DELETE", path);
      leave(`${name} was discarded.`);
    }), { kind: "dm-danger", "aria-label": `Discard ${name}` });
    const item = make(
      "article",
      { class: "dm-card dk-card", "aria-label": name },
      make("p", { class: "dm-hint" }, `Proposed by ${author}, ${moment(at)}`),
      field("Title", heading),
      field("Text (Markdown)", text),
      trouble,
      make("div", { class: "dm-buttons" }, publish, save, discard),
    );
    return item;
  }

  return { element, load };
}

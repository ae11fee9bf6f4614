// The knowledge base: collections, their documents, and the search that finds their passages.

import { api, query, request } from "../../shared/api.js";
import { announce, make, replaceChildren } from "../../shared/dom.js";
import { moment, plural } from "../../shared/formats.js";
import { articleList } from "./articles.js";
import { collectionControls } from "./collections.js";
import { button, field, latest } from "./controls.js";
import { isAdmin, problem, register } from "./desk.js";
import { questionList, questionMarker } from "./questions.js";
import { isSettled, passageItem, passageLine, sizeText, stateText } from "./knowledge_texts.js";
import { stackedRow, stackedTable } from "./stacked_table.js";

/** @import { ChunkList, CollectionList, CollectionView, DocumentList, DocumentView, Passage, Passages, Viewer } from "../../shared/api_types.js" */

const POLL_MS = 2000; // while a document waits or is read
const ACCEPTED = ".md,.markdown,.html,.htm,.txt,.pdf,.docx,.csv";
const COLUMNS = ["Document", "State", "Passages", "Size", "Changed", "Actions"];

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  const trouble = make("div");
  const listTrouble = make("div"); // ends with the next list that arrives
  const outcomes = make("ul", { class: "dk-uploads" });
  const rows = make("tbody");
  const empty = make("p", { class: "dk-empty", hidden: true }, "There are no documents yet.");
  const more = button("Show more", () => load(true), { hidden: true });
  /** @type {Map<string, {state: string, element: Element}>} the rows by document, and what they show */
  const shown = new Map();
  let numPages = 1;
  const found = make("div", { class: "dk-found", role: "status" });
  const chunks = make("div");
  const runLatest = latest();
  const runSearch = latest();
  const runChunks = latest();
  /** @type {CollectionView[]} */
  let collections = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let hasLeft = false;

  const choice = make("select", { class: "dm-input" });
  const files = make("input", { type: "file", multiple: true, accept: ACCEPTED, class: "dm-input" });
  const upload = make("div", { class: "dk-drop" }, field("Add documents", files, "Markdown, HTML, text, PDF, Word (.docx), or CSV of questions and answers. Files can also be dropped here."));
  const words = make("input", { type: "search", maxlength: "2000" });
  const search = make("form", { class: "dk-filters", role: "search" }, field("Try a search", words), make("button", { class: "dm-button", type: "submit" }, "Search"));

  const about = make("p", { class: "dm-hint dk-about", dir: "auto" });
  const controls = collectionControls({
    viewer,
    current: () => current(),
    changed: async (id) => {
      await loadCollections(id);
      await showChosen();
    },
  });

  const questions = questionList();
  /** @param {string} question @param {Passage} passage */
  const marker = (question, passage) => questionMarker(question, passage, () => questions.load(choice.value));
  const articles = articleList(() => load());
  const current = () => collections.find(({ id }) => id === choice.value);

  /** @param {() => Promise<unknown>} work */
  async function act(work) {
    trouble.replaceChildren();
    try {
      await work();
    } catch (error) {
      trouble.replaceChildren(problem(error));
    }
  }

  /** @param {string | null} chosen  the collection to choose; null: the first */
  async function loadCollections(chosen = choice.value) {
    ({ collections } = /** @type {CollectionList} */ (await request("GET", "/api/kb/collections")));
    choice.replaceChildren(...collections.map(({ id, name }) => make("option", { value: id, selected: id === chosen }, name)));
    describe();
  }

  function describe() {
    const collection = current();
    upload.hidden = !collection?.may_edit;
    about.textContent = collection ? [collection.description, collection.everyone ? "Every user may search it." : "Only members and admins may search it."].filter(Boolean).join(" ") : "";
  }

  /** @param {DocumentView} document */
  function row(document) {
    const { name, title, state, error } = document;
    const open = button("Passages", () => act(() => showChunks(document)), { kind: "dm-small", "aria-label": `Passages of ${name}`, disabled: document.chunks === 0 });
    const remove = button("Remove", () => act(() => removeDocument(document)), { kind: "dm-small dm-danger", "aria-label": `Remove ${name}` });
    return stackedRow(
      COLUMNS,
      { "data-state": state },
      make("th", { scope: "row", dir: "auto" }, title || name, title && title !== name ? make("div", { class: "dm-hint" }, name) : null),
      make("td", {}, stateText(document), error ? make("div", { class: "dm-hint" }, error) : null),
      make("td", {}, document.chunks.toLocaleString()),
      make("td", {}, sizeText(document.bytes)),
      make("td", {}, moment(document.updated_at)),
      make("td", {}, make("div", { class: "dm-buttons" }, open, current()?.may_edit ? remove : null)),
    );
  }

  /** The row of a document: the one that is shown, while nothing of it changes, so that it keeps the focus. @param {DocumentView} document */
  function rowOf(document) {
    const state = JSON.stringify([document, current()?.may_edit]);
    const before = shown.get(document.id);
    const element = before?.state === state ? before.element : row(document);
    shown.set(document.id, { state, element });
    return element;
  }

  /** Loads as many pages as are shown; `further`: one more. */
  function load(further = false) {
    clearTimeout(timer);
    const pages = further ? numPages + 1 : numPages;
    return runLatest(
      () => loadPages(choice.value, pages),
      ({ documents, hasMore }) => {
        numPages = pages;
        listTrouble.replaceChildren();
        replaceChildren(rows, documents.map(rowOf));
        more.hidden = !hasMore;
        empty.hidden = documents.length > 0;
        if (!documents.every(isSettled)) loadSoon();
      },
      (error) => {
        listTrouble.replaceChildren(problem(error));
        loadSoon(); // what is being read goes on
      },
    );
  }

  function loadSoon() {
    if (!hasLeft) timer = setTimeout(() => load(), POLL_MS);
  }

  /** Uploads one after another: each is answered for by itself. @param {Iterable<File>} chosen */
  async function add(chosen) {
    const collection = choice.value;
    const lines = [...chosen].map((file) => ({ file, line: make("li", {}, `${file.name}: waiting`) }));
    outcomes.replaceChildren(...lines.map(({ line }) => line));
    for (const { file, line } of lines) {
      line.textContent = `${file.name}: uploading …`;
      try {
        await api.addDocument(file, collection);
        line.textContent = `${file.name}: added`;
      } catch (error) {
        line.textContent = `${file.name}: ${error instanceof Error ? error.message : error}`;
        line.classList.add("dk-failed");
      }
    }
    await load();
  }

  /** @param {DocumentView} document */
  async function removeDocument({ id, name }) {
    if (!confirm(`Remove ${name}? Replies that cite it keep their quotations.`)) return;
    await request("DELETE", `/api/kb/documents/${encodeURIComponent(id)}`);
    announce(`${name} was removed.`);
    chunks.replaceChildren();
    await load();
  }

  /** @param {DocumentView} document */
  function showChunks({ id, name }) {
    const list = make("ol", { class: "dk-passages" });
    const next = button("Show more", () => loadChunks(), { hidden: true });
    /** @type {string | null} */
    let at = null;
    const loadChunks = () =>
      runChunks(
        () => /** @type {Promise<ChunkList>} */ (request("GET", `/api/kb/documents/${encodeURIComponent(id)}/chunks?${query({ cursor: at })}`)),
        (page) => {
          list.append(...page.chunks.map((chunk) => passageLine(chunk.heading, plural(chunk.tokens, "token"), chunk.text)));
          at = page.next_cursor;
          next.hidden = at === null;
        },
        (error) => trouble.replaceChildren(problem(error)),
      );
    const title = make("h2", { tabindex: "-1", dir: "auto" }, `Passages of ${name}`);
    chunks.replaceChildren(title, list, next);
    title.focus();
    return loadChunks();
  }

  search.addEventListener("submit", (event) => {
    event.preventDefault();
    if (words.value.trim() === "") return;
    const asked = words.value;
    runSearch(
      () => /** @type {Promise<Passages>} */ (request("GET", `/api/kb/search?${query({ q: words.value, collection: choice.value || null })}`)),
      ({ passages }) =>
        found.replaceChildren(
          make("p", {}, passages.length === 0 ? "Nothing was found." : `${plural(passages.length, "passage")} found, best first.`),
          make("ol", { class: "dk-passages" }, ...passages.map((passage) => (current()?.may_edit ? passageItem(passage, ...marker(asked, passage)) : passageItem(passage)))),
        ),
      (error) => found.replaceChildren(problem(error)),
    );
  });
  choice.addEventListener("change", () => {
    controls.close();
    showChosen();
  });
  function showChosen() {
    describe();
    found.replaceChildren();
    chunks.replaceChildren();
    numPages = 1;
    articles.load(current()?.may_edit ? choice.value : null);
    questions.load(current()?.may_edit ? choice.value : null);
    return load();
  }
  files.addEventListener("change", () =>
    act(async () => {
      const chosen = [...(files.files ?? [])];
      files.value = ""; // the same file can be chosen again
      await add(chosen);
    }),
  );
  // Anywhere in the section: beside the box, the browser would leave the page for the file.
  place.addEventListener("dragover", (event) => event.preventDefault());
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!upload.hidden) act(() => add(event.dataTransfer?.files ?? []));
  });

  place.append(
    make("p", { class: "dk-lead" }, "Documents that replies rest on and cite. A chat uses them when its settings name the collection under Sources."),
    make("div", { class: "dk-filters" }, field("Collection", choice), ...(isAdmin(viewer) ? controls.buttons : [])),
    about,
    controls.panel,
    articles.element,
    upload,
    make("div", { role: "status" }, outcomes),
    trouble,
    search,
    found,
    questions.element,
    listTrouble,
    stackedTable("Documents", COLUMNS, rows),
    empty,
    more,
    chunks,
  );
  await loadCollections(location.hash.split("/")[1] ?? ""); // the collection that a link names
  await showChosen();
  return () => {
    hasLeft = true;
    clearTimeout(timer);
  };
}

/**
 * The first pages of a collection's documents.
 * @param {string} collection
 * @param {number} pages
 */
async function loadPages(collection, pages) {
  /** @type {DocumentView[]} */
  const documents = [];
  /** @type {string | null} */
  let cursor = null;
  for (let page = 0; page < pages && (page === 0 || cursor !== null); page++) {
    const list = /** @type {DocumentList} */ (await request("GET", `/api/kb/documents?${query({ collection: collection || null, cursor })}`));
    documents.push(...list.documents);
    cursor = list.next_cursor;
  }
  return { documents, hasMore: cursor !== null };
}

register({ id: "knowledge", title: "Knowledge", show });

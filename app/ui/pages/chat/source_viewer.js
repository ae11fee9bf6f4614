// A dialog with a document that a reply cites, at the passage. Only a part of a long text is loaded at a time.

import { api, errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";
import { headingBelowTitle } from "../../components/chat/citations.js";

/** @import { Citation } from "../../components/chat/types.js" */
/** @import { TextSpan } from "../../shared/api_types.js" */

/** @typedef {Citation & {document_id: string, version: number, start: number, end: number}} Place */

const AROUND = 4000; // code points before and after the passage
const MORE = 8000; // that a button adds

/**
 * The text of a span before, in and after a passage. Offsets are code points, as in Python.
 * @param {Pick<TextSpan, "text" | "start">} span
 * @param {{start: number, end: number}} passage
 */
export function divide({ text, start }, passage) {
  const points = [...text];
  const from = Math.max(0, passage.start - start);
  const to = Math.max(from, passage.end - start);
  return [points.slice(0, from), points.slice(from, to), points.slice(to)].map((part) => part.join(""));
}

/**
 * Opens the document of a citation. One that is gone, or that the user may no longer read, is shown as the reply quotes
 * it.
 * @param {Citation} citation
 */
export async function openSource(citation) {
  const { title } = citation;
  const heading = headingBelowTitle(citation);
  const titleId = uniqueId("dm-source-title");
  const note = make("p", { class: "dm-hint", role: "status" }, "Loading …");
  const text = make("div", { class: "dm-source-text", dir: "auto", tabindex: "0", role: "region", "aria-label": "Text of the document" });
  const close = make("button", { type: "button", class: "dm-button", onclick: () => dialog.close() }, "Close");
  const dialog = make(
    "dialog",
    { class: "dm-dialog dm-source", "aria-labelledby": titleId },
    make("h2", { id: titleId, dir: "auto" }, title),
    heading === "" ? null : make("p", { class: "dm-source-heading", dir: "auto" }, heading),
    note,
    text,
    make("div", { class: "dm-buttons" }, close),
  );
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // the area around it
  showDialog(dialog, close);
  try {
    const place = /** @type {Place} */ (citation);
    const [span, { version }] = await Promise.all([
      api.documentText(place.document_id, { version: place.version, start: Math.max(0, place.start - AROUND), end: place.end + AROUND }),
      api.getDocument(place.document_id),
    ]);
    note.textContent = versionNote(place.version, version);
    showSpan(text, span, place, note);
  } catch (error) {
    text.replaceChildren(make("mark", {}, citation.text));
    note.textContent = `${errorMessage(error)} This is the passage as the reply keeps it.`;
  }
}

/** @param {number} cited @param {number | null} current */
function versionNote(cited, current) {
  if (current === null || current === cited) return `Version ${cited}`;
  return `This is version ${cited}, which the reply rests on. The document has changed since: searches find version ${current}.`;
}

/**
 * Shows a part of the text with the passage marked, and buttons for more of it.
 * @param {HTMLElement} area
 * @param {TextSpan} span
 * @param {Place} place
 * @param {HTMLElement} note
 */
function showSpan(area, span, place, note) {
  const [before, passage, after] = divide(span, place);
  const mark = make("mark", {}, passage ?? "");
  let { start, end } = span;
  /** @param {string} name @param {(button: HTMLButtonElement) => Promise<void>} load */
  const more = (name, load) => {
    const button = make("button", { type: "button", class: "dm-action" }, name);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await load(button);
      } catch (error) {
        note.textContent = errorMessage(error);
      }
      button.disabled = false;
    });
    return button;
  };
  /** @param {number} from @param {number} to */
  const fetchText = (from, to) => api.documentText(place.document_id, { version: place.version, start: from, end: to });
  const earlier = more("Earlier text", async (button) => {
    const { scrollHeight, scrollTop } = area;
    const added = await fetchText(Math.max(0, start - MORE), start);
    ({ start } = added);
    button.after(added.text);
    button.hidden = start === 0;
    area.scrollTop = scrollTop + area.scrollHeight - scrollHeight; // what was read stays where it is
  });
  const later = more("Later text", async (button) => {
    const added = await fetchText(end, end + MORE);
    ({ end } = added);
    button.before(added.text);
    button.hidden = end >= added.length;
  });
  earlier.hidden = start === 0;
  later.hidden = end >= span.length;
  area.replaceChildren(earlier, before ?? "", mark, after ?? "", later);
  mark.scrollIntoView({ block: "center" });
}

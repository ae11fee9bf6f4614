// A dialog with a document that a reply cites, at the passage. Only a part of a long text is loaded at a time, and more of
// it when the user scrolls near its beginning or its end.

import { api, errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";
import { headingBelowTitle } from "../../components/chat/citations.js";

/** @import { Citation } from "../../components/chat/types.js" */
/** @import { TextSpan } from "../../shared/api_types.js" */

/** @typedef {Citation & {document_id: string, version: number, start: number, end: number}} Place */

const AROUND = 4000; // code points before and after the passage
const MORE = 8000; // code points that are added at a time
const NEAR = "600px"; // from the beginning or the end of what is loaded: more of the text is fetched

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
  const back = make("button", { type: "button", class: "dm-button", hidden: true }, "Back to the passage");
  const dialog = make(
    "dialog",
    { class: "dm-dialog dm-source", "aria-labelledby": titleId },
    make("h2", { id: titleId, dir: "auto" }, title),
    heading === "" ? null : make("p", { class: "dm-source-heading", dir: "auto" }, heading),
    note,
    text,
    make("div", { class: "dm-buttons" }, back, close),
  );
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // the area around it
  const closed = showDialog(dialog, text); // from the keyboard, the arrows scroll the text at once
  try {
    const place = /** @type {Place} */ (citation);
    const [span, { version }] = await Promise.all([
      api.documentText(place.document_id, { version: place.version, start: Math.max(0, place.start - AROUND), end: place.end + AROUND }),
      api.getDocument(place.document_id),
    ]);
    note.textContent = versionNote(place.version, version);
    const { mark, stop } = showSpan(text, span, place, note);
    closed.then(stop);
    back.hidden = text.scrollHeight <= text.clientHeight; // the passage cannot leave the window
    back.addEventListener("click", () => {
      mark.scrollIntoView({ block: "center" });
      text.focus({ preventScroll: true });
    });
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
 * Shows a part of the text with the passage marked. More of it is loaded where the user scrolls near its beginning or its
 * end; there are buttons for that, too, which also try again what has failed.
 * @param {HTMLElement} area
 * @param {TextSpan} span
 * @param {Place} place
 * @param {HTMLElement} note
 * @returns {{mark: HTMLElement, stop: () => void}}  `stop`: nothing more is loaded
 */
function showSpan(area, span, place, note) {
  const [before, passage, after] = divide(span, place);
  const mark = make("mark", {}, passage ?? "");
  const version = note.textContent;
  let { start, end } = span;
  /** @type {Map<HTMLButtonElement, string>} what failed, by the button that tries it again */
  const errors = new Map();
  const showNote = () => {
    const said = [...errors.values()].join(" ") || version;
    if (note.textContent !== said) note.textContent = said; // the same words again would be announced again
  };
  /** @type {Map<Element, () => Promise<void>>} */
  const loads = new Map();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) loads.get(target)?.();
    },
    { root: area, rootMargin: `${NEAR} 0px` },
  );
  /** @param {string} name @param {(button: HTMLButtonElement) => Promise<void>} load */
  const more = (name, load) => {
    const button = make("button", { type: "button", class: "dm-action", onclick: () => run() }, name);
    let isLoading = false;
    const run = async () => {
      if (isLoading) return;
      isLoading = true;
      observer.unobserve(button);
      const hasFocus = document.activeElement === button;
      try {
        await load(button);
        errors.delete(button);
        // The focus is lost with the button, unless the user has moved it meanwhile.
        const isLost = button.hidden && [button, document.body].includes(/** @type {HTMLElement} */ (document.activeElement));
        if (hasFocus && isLost) area.focus({ preventScroll: true });
        if (area.isConnected && !button.hidden) observer.observe(button); // it may still be near
      } catch (error) {
        errors.set(button, `${errorMessage(error)} “${name}” tries again.`);
      }
      showNote();
      isLoading = false;
    };
    loads.set(button, run);
    return button;
  };
  /** @param {number} from @param {number} to */
  const fetchText = (from, to) => api.documentText(place.document_id, { version: place.version, start: from, end: to });
  const earlier = more("Earlier text", async (button) => {
    const added = await fetchText(Math.max(0, start - MORE), start);
    const { scrollHeight, scrollTop } = area; // the user may have scrolled meanwhile
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
  for (const button of loads.keys()) observer.observe(button);
  return { mark, stop: () => observer.disconnect() };
}

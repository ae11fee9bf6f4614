// Export and import of conversations as files.

import { api } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";

/**
 * Downloads one conversation, or all of them with `id` null. The server chooses the file name.
 * @param {string | null} id
 * @param {string} format  markdown or json
 */
export function download(id, format) {
  const link = make("a", { href: api.exportPath(id, format), download: "" });
  document.body.append(link);
  link.click();
  link.remove();
}

/**
 * Downloads some conversations, once the server has written them all.
 * @param {string[]} ids
 * @param {string} format  markdown or json
 */
export async function downloadChosen(ids, format) {
  const { blob, name } = await api.exportChosen(ids, format);
  const url = URL.createObjectURL(blob);
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser has read it by then
}

/**
 * What came of an import, as a sentence.
 * @param {{ imported: number, already_there: number }} counts
 */
export function importOutcome({ imported, already_there: there }) {
  const known = `${plural(there, "conversation")} ${there === 1 ? "was" : "were"} already here`;
  if (imported === 0 && there > 0) return `Nothing new: ${known}.`;
  const rest = there > 0 ? `; ${known}` : "";
  return `${plural(imported, "conversation")} imported${rest}.`;
}

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
 * What came of an import, as a sentence.
 * @param {{ imported: number, already_there: number }} counts
 */
export function importOutcome({ imported, already_there: there }) {
  const known = `${plural(there, "conversation")} ${there === 1 ? "was" : "were"} already here`;
  if (imported === 0 && there > 0) return `Nothing new: ${known}.`;
  const rest = there > 0 ? `; ${known}` : "";
  return `${plural(imported, "conversation")} imported${rest}.`;
}

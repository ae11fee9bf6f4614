// Export and import of conversations as files.

import { api } from "../../shared/api.js";
import { byId, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";

// Downloads one conversation, or all of them with `id` null. The server chooses the file name.
export function download(id, format) {
  const link = make("a", { href: api.exportPath(id, format), download: "" });
  document.body.append(link);
  link.click();
  link.remove();
}

const number = new Intl.NumberFormat("en");
const conversations = (count) => `${number.format(count)} conversation${count === 1 ? "" : "s"}`;

function outcome({ imported, already_there: there }) {
  const known = `${conversations(there)} ${there === 1 ? "was" : "were"} already here`;
  if (imported === 0 && there > 0) return `Nothing new: ${known}.`;
  const rest = there > 0 ? `; ${known}` : "";
  return `${conversations(imported)} imported${rest}.`;
}

// Wires the export and import buttons under the list. Calls `page`: onStatus(text), onError(error), onImported().
export function listenForTransfers(page) {
  const exporting = byId("dm-export");
  exporting.addEventListener("click", () =>
    openMenu(exporting, "Export all conversations", [
      { name: "JSON, with all versions", iconName: "export", action: () => download(null, "json") },
      { name: "Markdown, one file each", iconName: "export", action: () => download(null, "markdown") },
    ]),
  );
  const picker = byId("dm-import-file");
  byId("dm-import").addEventListener("click", () => picker.click());
  picker.addEventListener("change", async () => {
    const [file] = picker.files;
    picker.value = ""; // so that the same file can be chosen again
    if (!file) return;
    page.onStatus(`Importing ${file.name} …`);
    try {
      page.onStatus(outcome(await api.importFile(file)));
    } catch (error) {
      page.onStatus("");
      page.onError(error);
      return;
    }
    page.onImported();
  });
}

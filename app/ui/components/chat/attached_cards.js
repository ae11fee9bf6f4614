// The files of a sent message, each a folded card.

import { make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { fileSize } from "./attached_text.js";

/** @param {import("./attached_text.js").AttachedFile[]} files */
export function fileCards(files) {
  return files.map(({ name, size, tokens, text }) => {
    const card = make(
      "details",
      { class: "dm-file-card" },
      make("summary", {}, make("span", { class: "dm-file-name", dir: "auto" }, name), make("span", { class: "dm-file-about" }, `${fileSize(size)} · ${plural(tokens, "token")}`)),
    );
    card.addEventListener("toggle", () => {
      if (card.open && card.childElementCount === 1) card.append(make("pre", { class: "dm-file-text", dir: "auto", tabindex: "0", role: "region", "aria-label": `Text of ${name}` }, text));
    });
    return card;
  });
}

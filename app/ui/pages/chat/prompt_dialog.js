// "What the model reads": a prompt with its special tokens, in a dialog, a part at a time.

import { errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";
import { count, plural } from "../../shared/formats.js";
import { copyText } from "../../components/chat/copying.js";

/** @import { PromptView } from "../../shared/api_types.js" */

/**
 * @param {(offset: number) => Promise<PromptView>} load
 * @param {(error: unknown) => void} reportError
 */
export async function openPrompt(load, reportError) {
  /** @type {PromptView} */
  let view;
  try {
    view = await load(0);
  } catch (error) {
    reportError(error);
    return;
  }
  const title = uniqueId("dm-prompt-title");
  const text = make("pre", { class: "dm-reading-text", tabindex: "0", role: "region", "aria-label": "The prompt", dir: "auto" });
  const alert = make("p", { role: "alert", class: "dm-reading-alert" });
  const more = make("button", { type: "button", class: "dm-button" }, "Show more");
  const copy = make("button", { type: "button", class: "dm-button" }, "Copy what is shown");
  const close = make("button", { type: "button", class: "dm-button dm-primary", onclick: () => dialog.close() }, "Close");
  const dialog = make(
    "dialog",
    { class: "dm-dialog dm-reading", "aria-labelledby": title },
    make("h2", { id: title }, "What the model reads"),
    make("p", { class: "dm-reading-about" }, about(view)),
    text,
    alert,
    make("div", { class: "dm-buttons" }, more, copy, close),
  );
  /** @param {PromptView} part */
  const show = (part) => {
    for (const piece of part.pieces) text.append(piece.is_special ? make("mark", { class: "dm-special", title: "Special token" }, piece.text) : piece.text);
    view = part;
    more.hidden = part.next_offset === null;
  };
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      show(await load(view.next_offset ?? 0));
      alert.textContent = "";
    } catch (error) {
      alert.textContent = errorMessage(error);
    }
    more.disabled = false;
  });
  copy.addEventListener("click", () => copyText(text.textContent ?? "", copy));
  show(view);
  showDialog(dialog, close);
}

/** @param {PromptView} view */
function about({ model, num_tokens: tokens, omitted_messages: omitted, is_exact: isExact }) {
  const parts = [`${plural(tokens, "token")}, as ${model} reads them. Special tokens are in boxes.`];
  if (omitted > 0) parts.push(`${count(omitted)} earlier ${omitted === 1 ? "message is" : "messages are"} left out.`);
  if (!isExact) parts.push("Another model wrote this reply, and read it in a form of its own.");
  return parts.join(" ");
}

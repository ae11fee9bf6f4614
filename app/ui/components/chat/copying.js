// Copies text, and says on the button how that went.

/** Copies text and shows the outcome on the button for 1.5 s. @param {string} text @param {HTMLElement} button */
export const copyText = (text, button) => tell(() => navigator.clipboard.writeText(text), button);

/**
 * Copies formatted text, which programs that take none get as plain text.
 * @param {string} html  sanitized @param {string} text @param {HTMLElement} button
 */
export function copyRich(html, text, button) {
  return tell(() => {
    const parts = { "text/html": new Blob([html], { type: "text/html" }), "text/plain": new Blob([text], { type: "text/plain" }) };
    return navigator.clipboard.write([new ClipboardItem(parts)]);
  }, button);
}

/** @param {() => Promise<void>} copy @param {HTMLElement} button */
async function tell(copy, button) {
  let outcome = "Copied";
  try {
    await copy();
  } catch {
    outcome = "Not allowed";
  }
  const label = button.lastChild;
  const before = label?.textContent;
  if (!label || before === undefined || before === outcome) return;
  label.textContent = outcome;
  setTimeout(() => (label.textContent = before), 1500);
}

// Modal dialogs: what all of them do, whatever they ask or show.

/**
 * Shows a dialog until it is closed, then removes it. Resolves to its return value.
 * @param {HTMLDialogElement} dialog
 * @param {HTMLElement | null} focus  what gets the focus; null: what the browser chooses
 * @returns {Promise<string>}
 */
export function showDialog(dialog, focus = null) {
  dialog.addEventListener("keydown", (event) => event.stopPropagation()); // Esc must not also stop a reply
  const closed = /** @type {Promise<string>} */ (
    new Promise((resolve) => {
      dialog.addEventListener("close", () => {
        dialog.remove();
        resolve(dialog.returnValue);
      });
    })
  );
  document.body.append(dialog);
  dialog.showModal();
  focus?.focus();
  return closed;
}

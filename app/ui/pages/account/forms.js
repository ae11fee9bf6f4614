// Forms of the sign-in and account pages.

import { errorMessage } from "../../shared/api.js";

/**
 * Runs `work` on submit, once at a time, and shows an error in `problem`. Enables the submit button, which may be
 * disabled in the HTML until then.
 * @param {HTMLFormElement} form
 * @param {HTMLElement} problem
 * @param {() => Promise<unknown>} work
 */
export function onSubmit(form, problem, work) {
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("button[type=submit]"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    problem.textContent = "";
    try {
      await work();
    } catch (error) {
      problem.textContent = errorMessage(error);
    } finally {
      button.disabled = false;
    }
  });
  button.disabled = false;
}

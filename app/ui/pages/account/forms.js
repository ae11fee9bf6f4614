// Form handling shared by the static pages.

import { ApiError } from "../../shared/api.js";

export const errorMessage = (error) =>
  error instanceof ApiError ? error.message : `Something went wrong on this page (${error.message}). Reload it.`;

// Runs `work` on submit, once at a time, and shows an error in `problem`. Enables the submit button, which may be
// disabled in the HTML until then.
export function onSubmit(form, problem, work) {
  const button = form.querySelector("button[type=submit]");
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

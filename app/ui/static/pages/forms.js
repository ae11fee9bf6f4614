// What the forms of these pages have in common.

import { ApiError } from "../api.js";

export const errorMessage = (error) =>
  error instanceof ApiError ? error.message : `Something went wrong in this page (${error.message}). Load it again.`;

// Sends a form once at a time; `problem` shows what went wrong. The button may wait, disabled, until this listens.
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

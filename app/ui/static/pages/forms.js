// What the forms of these pages have in common.

import { ApiError } from "../api.js";

export const problemOf = (error) =>
  error instanceof ApiError ? error.message : `Something went wrong in this page (${error.message}). Load it again.`;

// Sends a form once at a time; `problem` shows what went wrong.
export function onSubmit(form, problem, work) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button[type=submit]");
    if (button.disabled) return;
    button.disabled = true;
    problem.textContent = "";
    try {
      await work();
    } catch (error) {
      problem.textContent = problemOf(error);
    } finally {
      button.disabled = false;
    }
  });
}

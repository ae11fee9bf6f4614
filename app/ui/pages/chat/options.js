// Loads the options that the page needs before it can show anything.

import { api } from "../../shared/api.js";

/**
 * Retries with backoff until the server responds, and shows the error meanwhile.
 * @param {(message: string) => void} showError
 */
export async function loadOptions(showError) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
    try {
      return await api.options();
    } catch (error) {
      showError(error instanceof Error ? error.message : String(error));
      document.documentElement.classList.add("dm-visible");
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

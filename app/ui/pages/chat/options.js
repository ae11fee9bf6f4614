// Loads the options that the page needs before it can show anything.

import { api } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";

// Retries with backoff until the server responds, and shows the error meanwhile.
export async function loadOptions() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
    try {
      return await api.options();
    } catch (error) {
      byId("dm-alert").textContent = error instanceof Error ? error.message : String(error);
      document.documentElement.classList.add("dm-visible");
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

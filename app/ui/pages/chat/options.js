// The page's options, which it needs before it can show anything, and which change with the loaded model.

import { api } from "../../shared/api.js";
import { plural } from "../../shared/formats.js";
import { parametersText } from "../../components/settings/prompt_size.js";

/** @import { PageOptions } from "../../shared/page_options.js" */

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

/** The options as they are now, whatever order responses arrive in. */
export class CurrentOptions {
  #lastRequest = 0; // sequence number; responses to older requests are dropped

  /** @param {PageOptions} value @param {(error: unknown) => void} reportError */
  constructor(value, reportError) {
    this.value = value;
    this.reportError = reportError;
  }

  /** Loads them again. Resolves to whether there are new ones; not where a newer request was made meanwhile. */
  async reload() {
    const request = ++this.#lastRequest;
    try {
      const value = await api.options();
      if (request !== this.#lastRequest) return false;
      this.value = value;
      return true;
    } catch (error) {
      if (request === this.#lastRequest) this.reportError(error);
      return false;
    }
  }
}

/** Three lines: what this is, the model with its size, and what that is good for. @param {PageOptions} options */
export function introduction({ model, accounts, welcome }) {
  const place = model.remote
    ? "whose model runs on another server. What you write is sent there."
    : `whose model runs on this ${accounts ? "server" : "machine"}. Nothing you write leaves it.`;
  const what = `Deskmate is a chat ${place}`;
  if (model.is_loading) return what;
  const size = model.num_parameters > 0 ? `${parametersText(model.num_parameters)} parameters and ` : "";
  const facts = `You are talking to ${model.name}, with ${size}a context of ${plural(model.max_model_len, "token")}.`;
  return [what, facts, ...(welcome.good_for ? [`It is good for ${welcome.good_for}.`] : [])].join("\n");
}

/**
 * What to say to a user whose model is the guide, and the name of the button beside it; nothing with another model.
 * @param {PageOptions} options
 * @returns {string[]}
 */
export function suggestion({ suggested_model: suggested, user }) {
  if (suggested === null) return [];
  const guide = "This model only knows Deskmate itself.";
  if (user.role !== "admin") return [`${guide} Ask an admin for another one to chat about anything else.`];
  const { title, size_mb: size, licence } = suggested;
  return [`${guide} To chat about anything else, get ${title}, a small general model (${size} MB, ${licence}).`, "Get and load it"];
}

/** Says when conversations are deleted; empty where they are not. @param {PageOptions} options */
export const retentionNote = ({ retention_days: days }) =>
  days === null ? "" : `Conversations without a message for ${days} days are deleted.`;

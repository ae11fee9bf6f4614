// What the sections of prompts and canned replies say.

import { moment } from "../../shared/formats.js";

/** @import { TemplateKind } from "./template_fields.js" */
/** @import { TemplateView } from "../../shared/api_types.js" */

/** @type {Record<TemplateKind, {noun: string, lead: string, bodyHint: string}>} */
export const KINDS = {
  prompt: {
    noun: "prompt",
    lead: "Instructions for the model before a conversation. Users choose one in the chat settings; a new version applies from the next message on.",
    bodyHint: "Use {{ name }} for a variable, and {% if name %} … {% endif %} for text that depends on one.",
  },
  canned: {
    noun: "canned reply",
    lead: "Texts that users insert with the button next to the message box, or by typing / in the empty box. They are asked for the variables.",
    bodyHint: "Use {{ name }} for a variable. A variable without a default must be filled in.",
  },
};

/** @param {TemplateView} view */
export const versionName = ({ version }) => (version === 0 ? "Original" : `Version ${version}`);

/** Where a version comes from. @param {TemplateView} view */
export const sourceText = ({ version, author, created_at: at }) =>
  version === 0 || at === null ? "included with Deskmate" : `by ${author ?? "a deleted user"}, ${moment(at)}`;

// Which size of model a system prompt needs, in words.

/** @import { PageOptions, PromptOptions } from "../../shared/page_options.js" */

const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** "1.5 billion", "135 million" @param {number} parameters */
export function parametersText(parameters) {
  if (parameters >= 1e9) return `${number.format(parameters / 1e9)} billion`;
  return parameters >= 1e6 ? `${number.format(parameters / 1e6)} million` : number.format(parameters);
}

/** What a prompt needs; empty if any model will do. @param {Pick<PromptOptions, "min_parameters">} prompt */
export const sizeText = ({ min_parameters: needed }) =>
  needed === null ? "" : `Needs a model with at least ${parametersText(needed)} parameters.`;

/**
 * Says that the loaded model is too small for a prompt; empty if it is not. One of unknown size is not.
 * @param {Pick<PromptOptions, "title" | "min_parameters"> | undefined} prompt
 * @param {Pick<PageOptions["model"], "name" | "num_parameters">} model
 */
export function tooSmallText(prompt, { name, num_parameters: size }) {
  if (!prompt || prompt.min_parameters === null || size === 0 || size >= prompt.min_parameters) return "";
  return (
    `The model ${name} is too small for the prompt “${prompt.title}”: it has ${parametersText(size)} parameters, and the ` +
    `prompt needs ${parametersText(prompt.min_parameters)}. Expect poor replies, or load a larger model.`
  );
}

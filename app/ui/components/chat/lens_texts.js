// The words and degrees of the lens. Pure functions.

/** @type {Record<string, string>} what each setting is called where it removed a token */
const NAMES = {
  temperature: "temperature 0",
  top_n_sigma: "top-nσ",
  top_k: "top-k",
  top_p: "top-p",
  min_p: "min-p",
  typical_p: "typical-p",
  penalties: "penalties",
  logit_bias: "token bias",
  min_tokens: "minimum length",
  structured: "answer format",
  forbidden_words: "forbidden words",
};

/** @param {string} setting */
export const settingName = (setting) => NAMES[setting] ?? setting;

/** A probability as text: "93 %", "4.2 %", "under 0.1 %". @param {number} share */
export function shareText(share) {
  if (share < 0.001) return share === 0 ? "0 %" : "under 0.1 %";
  return share < 0.0995 ? `${(100 * share).toFixed(1)} %` : `${Math.round(100 * share)} %`;
}

const DEGREES = [0.9, 0.5, 0.2, 0.05, 0.01];

/** How surprising a token is: 0 (at least 90 %) to 5 (under 1 %). @param {number} share */
export const degree = (share) => {
  const found = DEGREES.findIndex((least) => share >= least);
  return found === -1 ? DEGREES.length : found;
};

/** The legend's entries: the least share of each degree. */
export const LEGEND = ["90 % and more", "50 %", "20 %", "5 %", "1 %", "less"];

/** A token's text where its spaces must be seen. @param {string} text */
export const visibleText = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "∅";

/** An entropy in nats as text. @param {number} nats */
export const entropyText = (nats) => `${(nats / Math.LN2).toFixed(1)} bits`;

/** @param {{text: string, logprob: number, kept_logprob: number | null}} token */
export function tokenLabel({ text, logprob, kept_logprob: kept }) {
  const after = kept === null ? "removed by the settings" : `${shareText(Math.exp(kept))} after the settings`;
  return `${visibleText(text)}: ${shareText(Math.exp(logprob))}, ${after}`;
}

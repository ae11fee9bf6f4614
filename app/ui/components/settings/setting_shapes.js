// What a small picture of a setting shows, drawn from its meaning and its value. Settings that change probabilities are
// applied to twelve made-up words by the filters of the lens, which are the engine's. Needs no page.

import { choose, penalize } from "../chat/lens_filters.js";

/** @import { LensSettings } from "../../shared/api_types.js" */

/** A rectangle of a picture; `kind` is its colour. @typedef {{x: number, y: number, width: number, height: number, kind: "before" | "kept" | "mark"}} Shape */

export const WIDTH = 132;
export const HEIGHT = 26;

const LOGITS = Float32Array.of(5, 4.4, 4, 3.4, 3, 2.5, 2.1, 1.6, 1.1, 0.5, 0, -0.6); // the likeliest word first
const USES = new Map([[0, 2], [2, 1], [4, 4]]); // words that the reply has, and how often
const FORBIDDEN = [1, 3];
const BAR = 11; // from one word to the next
const GAP = 3;
const FLOOR = 0.02; // height of what is left of a probability, so that it can be seen
const LINES = [{ width: 1, y: 2 }, { width: 1, y: 9 }, { width: 1, y: 16 }, { width: 0.6, y: 23 }];
const LINE_HEIGHT = 3;

/** @type {LensSettings} */
const NEUTRAL = {
  ...{ temperature: 1, top_k: 0, top_p: 1, min_p: 0, typical_p: 1, top_n_sigma: 0 },
  ...{ repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 },
};

/**
 * The probabilities of the words before and after a setting is applied; after 0: it removes the word.
 * @param {string} name
 * @param {number} value
 */
export function shares(name, value) {
  return { before: sharesOf(NEUTRAL, LOGITS), after: sharesOf({ ...NEUTRAL, [name]: value }, LOGITS) };
}

/** @param {LensSettings} settings @param {Float32Array} open */
function sharesOf(settings, open) {
  const adjusted = open.map((score, id) => (USES.has(id) ? penalize(score, USES.get(id) ?? 0, settings) : score));
  const { weights, total } = choose({ raw: LOGITS, open, adjusted, isAdjusted: false, isPenalized: false }, settings);
  return [...weights].map((weight) => weight / total);
}

/**
 * The picture of a setting; empty: it has none.
 * @param {string} name
 * @param {any} value  as its control shows it
 * @returns {Shape[]}
 */
export function shapesOf(name, value) {
  if (name in NEUTRAL) return typeof value === "number" && Number.isFinite(value) ? barsOf(shares(name, value)) : [];
  const isSet = value !== null && value !== undefined && String(value).trim() !== "";
  switch (name) {
    case "forbidden_words": {
      const open = LOGITS.map((score, id) => (isSet && FORBIDDEN.includes(id) ? -Infinity : score));
      return barsOf({ before: sharesOf(NEUTRAL, LOGITS), after: sharesOf(NEUTRAL, open) });
    }
    case "max_tokens":
    case "max_thinking_tokens":
      return text(isSet ? lengthOf(Number(value)) : 1, isSet);
    case "stop":
    case "stop_regex":
      return text(isSet ? 0.55 : 1, isSet);
    case "seed":
      return repeats(isSet);
    case "json_schema":
      return isSet ? fields() : text(1, false);
    default:
      return [];
  }
}

/** Bars of the words: the outline as the model has them, filled as the setting leaves them. @param {{before: number[], after: number[]}} words @returns {Shape[]} */
function barsOf({ before, after }) {
  if (!after.every(Number.isFinite)) return []; // a value that is being typed, and means nothing yet
  const most = Math.max(...before, ...after);
  /** @param {number} share  the root of it shows the unlikely ones, too */
  const height = (share) => Math.max(FLOOR, Math.sqrt(share / most)) * HEIGHT;
  /** @param {number} share @param {number} index @param {Shape["kind"]} kind @returns {Shape} */
  const bar = (share, index, kind) => ({ x: index * BAR, y: HEIGHT - height(share), width: BAR - GAP, height: height(share), kind });
  const kept = after.flatMap((share, index) => (share > 0 ? [bar(share, index, "kept")] : []));
  return [...before.map((share, index) => bar(share, index, "before")), ...kept];
}

/** Which part of the picture a length fills: 2,000 tokens fill it. @param {number} tokens */
const lengthOf = (tokens) => Math.min(1, Math.max(0.06, Math.log10(Math.max(tokens, 1)) / Math.log10(2000)));

/**
 * Lines of text, of which a part is written; a mark stands where it ends.
 * @param {number} part @param {boolean} isCut
 * @returns {Shape[]}
 */
function text(part, isCut) {
  const all = LINES.reduce((sum, { width }) => sum + width, 0);
  /** @type {Shape[]} */
  const shapes = [];
  let left = part * all;
  for (const { width, y } of LINES) {
    const written = Math.min(width, left);
    shapes.push({ x: 0, y, width: width * WIDTH, height: LINE_HEIGHT, kind: "before" });
    if (written > 0) shapes.push({ x: 0, y, width: written * WIDTH, height: LINE_HEIGHT, kind: "kept" });
    if (isCut && written > 0 && left <= width) shapes.push({ x: Math.min(written * WIDTH, WIDTH - 2), y: y - 2, width: 2, height: LINE_HEIGHT + 4, kind: "mark" });
    left -= written;
    if (left <= 0.001) left = 0;
  }
  return shapes;
}

/** Two replies to one message: the same words with a seed, others without. @param {boolean} isSet @returns {Shape[]} */
function repeats(isSet) {
  const first = [22, 34, 16, 28, 20];
  const rows = [first, isSet ? first : [30, 14, 26, 18, 32]];
  return rows.flatMap((widths, row) => {
    let x = 0;
    return widths.map((width, index) => {
      /** @type {Shape} */
      const shape = { x, y: 3 + 13 * row, width, height: 7, kind: isSet || index === 0 ? "kept" : "before" };
      x += width + GAP;
      return shape;
    });
  });
}

/** Fields with values, one below another. @returns {Shape[]} */
function fields() {
  const rows = [[30, 50], [22, 34], [38, 60]];
  return rows.flatMap(([name, value], row) => {
    const y = 1 + 9 * row;
    /** @type {Shape[]} */
    const shapes = [{ x: 0, y, width: name, height: 5, kind: "before" }, { x: 46, y, width: value, height: 5, kind: "kept" }];
    return shapes;
  });
}

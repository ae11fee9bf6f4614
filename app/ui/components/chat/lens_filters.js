// The sampler's filters, as engine/sampling/cpu.py applies them, so that a moved slider needs no server. Weights are
// float32 as there: what ties in the engine ties here. Pure functions.

/** @import { LensSettings } from "../../shared/api_types.js" */

/**
 * The scores of one place, by token id.
 * @typedef {object} Scores
 * @property {Float32Array} raw  the model's logits
 * @property {Float32Array} open  the logits, with -Infinity for tokens that are forbidden
 * @property {Float32Array} adjusted  those with bias and penalties
 * @property {boolean} isAdjusted  there are bias or penalties
 * @property {boolean} isPenalized  there are penalties
 */

/**
 * What the settings leave to choose from.
 * @typedef {object} Choice
 * @property {Float32Array} weights  by token id; 0: removed
 * @property {number} total  of the weights
 * @property {number} count  tokens that are left
 * @property {(id: number) => string | null} removedBy  name of the setting that removed a token
 */

const GREEDY_BELOW = 1e-5;
const { fround } = Math;

/**
 * Returns the scores of a row as the server sends it.
 * @param {Uint8Array} bytes  float16 logits less the highest, then perhaps a bit for each token, set if forbidden
 * @param {{vocab_size: number, highest: number, has_forbidden: boolean, counts: number[][], bias: number[][]}} row
 * @param {LensSettings} settings
 * @returns {Scores}
 */
export function readScores(bytes, { vocab_size: size, highest, has_forbidden: hasForbidden, counts, bias }, settings) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const raw = new Float32Array(size);
  for (let id = 0; id < size; id++) raw[id] = fromHalf(view.getUint16(2 * id, true)) + highest;
  const open = Float32Array.from(raw);
  const bits = bytes.subarray(2 * size);
  if (hasForbidden) for (let id = 0; id < size; id++) if ((bits[id >> 3] >> (id & 7)) & 1) open[id] = -Infinity;
  const adjusted = Float32Array.from(open);
  for (const [id, value] of bias) adjusted[id] += value;
  for (const [id, inReply] of counts) adjusted[id] = penalize(adjusted[id], inReply, settings);
  return { raw, open, adjusted, isAdjusted: counts.length + bias.length > 0, isPenalized: counts.length > 0 };
}

/**
 * The score of a token that was used.
 * @param {number} score
 * @param {number} inReply  how often the reply has it
 * @param {Pick<LensSettings, "repetition_penalty" | "frequency_penalty" | "presence_penalty">} settings
 */
export function penalize(score, inReply, { repetition_penalty: repetition, frequency_penalty: frequency, presence_penalty: presence }) {
  const value = score < 0 ? score * repetition : score / repetition;
  return value - frequency * inReply - (inReply > 0 ? presence : 0);
}

/** @param {number} half  the bits of a float16 */
function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** @param {Scores} scores @param {LensSettings} settings @returns {Choice} */
export function choose(scores, settings) {
  const choice = filter(scores.adjusted, settings);
  const unpenalized = scores.isAdjusted ? filter(scores.open, settings) : null;
  const removedBy = (/** @type {number} */ id) => {
    if (choice.weights[id] > 0) return null;
    if (scores.open[id] === -Infinity) return "forbidden_words";
    if (unpenalized && unpenalized.weights[id] > 0) return scores.isPenalized ? "penalties" : "logit_bias";
    return choice.removedBy(id);
  };
  return { ...choice, removedBy };
}

/** @param {Float32Array} scores @param {LensSettings} settings @returns {Choice} */
function filter(scores, settings) {
  const highest = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  if (highest === -Infinity) return { weights: new Float32Array(scores.length), total: 0, count: 0, removedBy: () => "forbidden_words" };
  if (settings.temperature < GREEDY_BELOW) {
    const weights = new Float32Array(scores.length);
    weights[scores.indexOf(highest)] = 1;
    return { weights, total: 1, count: 1, removedBy: () => "temperature" };
  }
  const floor = settings.top_n_sigma > 0 ? highest - settings.top_n_sigma * deviation(scores) : -Infinity;
  const temperature = fround(settings.temperature);
  const all = scores.map((score) => (score < floor ? 0 : Math.exp(fround(fround(score - highest) / temperature))));
  const limits = limitsOf(all, settings);
  const lowest = Math.max(...limits.map(([, limit]) => limit));
  const weights = typical(all.map((weight) => (weight >= lowest ? weight : 0)), settings.typical_p);
  const removedBy = (/** @type {number} */ id) => {
    if (scores[id] < floor) return "top_n_sigma";
    return limits.find(([, limit]) => all[id] < limit)?.[0] ?? "typical_p";
  };
  return { weights, total: sum(weights), count: weights.reduce((count, weight) => count + (weight > 0 ? 1 : 0), 0), removedBy };
}

/**
 * The lowest weight that passes each filter, in their order. Ties pass together.
 * @param {Float32Array} weights
 * @param {LensSettings} settings
 * @returns {[string, number][]}
 */
function limitsOf(weights, { top_k: topK, top_p: topP, min_p: minP }) {
  const falling = Float32Array.from(weights).sort().reverse();
  const kth = topK > 0 && topK < weights.length ? falling[topK - 1] : 0;
  let nucleus = 0;
  if (topP < 1) {
    const among = falling.filter((weight) => weight >= kth);
    const share = topP * sum(among);
    let running = 0;
    nucleus = among.find((weight) => (running += weight) >= share) ?? 0;
    if (share <= 1) nucleus = 1;
  }
  return [["top_k", kth], ["top_p", nucleus], ["min_p", fround(minP)]];
}

/** Locally typical sampling among the weights above 0. @param {Float32Array} weights @param {number} typicalP */
function typical(weights, typicalP) {
  if (typicalP === 1) return weights;
  /** @type {number[]} */
  const ids = [];
  weights.forEach((weight, id) => weight > 0 && ids.push(id));
  if (ids.length < 2) return weights;
  const total = sum(weights);
  const shares = ids.map((id) => weights[id] / total);
  const mean = shares.reduce((all, share) => all + share * Math.log(share), 0);
  const surprises = shares.map((share) => Math.abs(Math.log(share) - mean));
  const order = ids.map((_, place) => place).sort((one, other) => surprises[one] - surprises[other] || one - other);
  let running = 0;
  const last = order.find((place) => (running += shares[place]) >= typicalP) ?? order[order.length - 1];
  const kept = new Float32Array(weights.length);
  ids.forEach((id, place) => {
    if (surprises[place] <= surprises[last]) kept[id] = weights[id];
  });
  return kept;
}

/** @param {Float32Array} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The standard deviation of the finite scores. @param {Float32Array} scores */
function deviation(scores) {
  const finite = [...scores].filter(Number.isFinite);
  const mean = finite.reduce((total, score) => total + score, 0) / finite.length;
  return Math.sqrt(finite.reduce((total, score) => total + (score - mean) ** 2, 0) / finite.length);
}

/** The probabilities of the model's own distribution, by token id. @param {Scores} scores */
export function ownShares({ raw }) {
  const highest = raw.reduce((most, score) => Math.max(most, score), -Infinity);
  const weights = raw.map((score) => Math.exp(score - highest));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

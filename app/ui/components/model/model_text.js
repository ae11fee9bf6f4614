// The engine's state in words.

/**
 * What the component shows: the answer of GET /api/engine, with `request` and `error` for a user's own request.
 * @typedef {object} EngineState
 * @property {string} state
 * @property {string | null} [reason]
 * @property {string | null} [stage]
 * @property {number | null} [progress]
 * @property {string} source
 * @property {boolean} remote
 * @property {any} model
 * @property {any} [stats]
 * @property {import("../../shared/api_types.js").DownloadView | null} [download]
 * @property {number | null} [request]
 * @property {string | null} [error]
 */

/** @type {Record<string, string>} */
const STATES = {
  stopped: "stopped",
  starting: "loading",
  ready: "ready",
  draining: "finishing its replies",
  asleep: "asleep",
  swapping: "loading another model",
  restarting: "restarting after a failure",
  failed: "failed",
};
/** @type {Record<string, string>} */
const REMOTE_STATES = { starting: "waiting for the server", failed: "cannot be reached" };
const RESTING = new Set(["asleep", "failed"]);
const STEADY = new Set(["ready", ...RESTING]);

const number = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
/** @param {number} share */
const percent = (share) => `${Math.round(100 * share)} %`;

/**
 * While a model is downloaded from the hub, the state is still "ready": the old model keeps serving.
 * @param {EngineState} engine
 */
export const isMoving = ({ state, stage, remote }) => !remote && (Boolean(stage) || !STEADY.has(state));

/** @param {EngineState} engine */
export const isResting = ({ state }) => RESTING.has(state);

/** @param {EngineState} engine @returns {string} */
export function describeState({ state, remote, model }) {
  return `${model.name} · ${(remote ? REMOTE_STATES[state] : undefined) ?? STATES[state] ?? state}`;
}

/** @param {EngineState} engine @returns {string} */
export function describeEngine({ state, reason, stage, source, remote, model, stats }) {
  if (!remote && stage) return `${stage} …`;
  if (state !== "ready") return reason ?? "";
  if (remote) {
    return `Runs on another server: ${source} (${model.attention}), context of ${model.max_model_len.toLocaleString("en")} tokens. That server chooses the settings left at the model's default.`;
  }
  const used = stats?.utilisation;
  return [
    `${number.format(model.num_parameters)} parameters, ${model.dtype} on ${model.device}, context of ${model.max_model_len.toLocaleString("en")} tokens.`,
    !model.has_chat_template && "It has no chat template, so it gets a plain dialogue and may answer poorly.",
    model.has_unused_adapter && "The LoRA adapter in its folder is not applied. Merge it into the weights to use it.",
    used && `In the last minute it was busy ${percent(used.device_busy)} of the time and generated ${Math.round(used.generation_tokens_per_second * 60)} tokens.`,
  ].filter(Boolean).join(" ");
}

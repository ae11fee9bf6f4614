// What the Knowledge section says of a document.

/** @import { DocumentView } from "../../shared/api_types.js" */

/** Whether a document has been read, or could not be. @param {Pick<DocumentView, "state">} document */
export const isSettled = ({ state }) => state === "ready" || state === "failed";

/** @param {Pick<DocumentView, "state" | "progress" | "version">} document */
export function stateText({ state, progress, version }) {
  const before = version === null || isSettled({ state }) ? "" : " (the version before is searched)";
  if (state === "waiting") return `Waiting to be read${before}`;
  if (state === "reading") return `Being read, ${Math.floor(100 * progress)} %${before}`;
  if (state === "failed") return version === null ? "Could not be read" : "The new version could not be read; the one before is searched";
  return "Ready";
}

/** How well a passage matched: scores compare within one search only, so few digits tell. @param {number} score */
export const scoreText = (score) => `score ${score < 0.01 ? "below 0.01" : score.toFixed(2)}`;

/** @param {number} bytes */
export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

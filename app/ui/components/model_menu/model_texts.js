// What the menu of models says of each.

import { count } from "../../shared/formats.js";

/** @import { DownloadView, FoundModelView, RecommendedModelView } from "../../shared/api_types.js" */

/** @type {Record<string, string>} */
const SOURCES = { bundled: "in the box", "models-dir": "downloaded", "hub-cache": "hub cache", ollama: "Ollama", "lm-studio": "LM Studio" };

/** A size as file managers and the hub show it: 98 MB, 1.5 GB. @param {number} bytes */
export function fileSize(bytes) {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(1)} GB`;
  return `${count(Math.max(1, Math.round(bytes / 1e6)))} MB`;
}

/** Two digits: the estimate knows no more. @param {number} speed */
export function speedLimit(speed) {
  const rounded = speed < 10 ? speed.toFixed(1) : count(Number(speed.toPrecision(2)));
  return `up to ${rounded} tokens/s`;
}

/** @param {FoundModelView} model */
export function foundFacts({ source, size_bytes: bytes, format, context_length: context, fits, tokens_per_second: speed, problem }) {
  if (problem) return problem;
  return [
    fileSize(bytes),
    format,
    context && `context of ${count(context)}`,
    fits === false && "needs more memory than is free",
    speed && speedLimit(speed),
    SOURCES[source] ?? source,
  ].filter(Boolean).join(" · ");
}

/** @param {RecommendedModelView} model */
export function recommendedFacts({ description, size_mb: size, licence, terms }) {
  return `${description} ${fileSize(size * 1e6)} · ${licence}${terms === "open" ? "" : " (not open source)"}`;
}

/** What happens or has happened to a download; empty if there is nothing to say. @param {DownloadView | null | undefined} download */
export function downloadText(download) {
  switch (download?.state) {
    case "downloading":
      return `${download.stage || `Downloading ${download.title}`} …`;
    case "loading":
      return `Loading ${download.title} …`;
    case "cancelled":
      return `The download of ${download.title} was cancelled. What has arrived is kept.`;
    default:
      return "";
  }
}

/** @param {DownloadView | null | undefined} download */
export const isRunning = (download) => download?.state === "downloading" || download?.state === "loading";

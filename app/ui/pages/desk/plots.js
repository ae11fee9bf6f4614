// The usage plots. The table below them has the same numbers.

import { make } from "../../shared/dom.js";
import { compact, rate, seconds } from "../../shared/formats.js";
import uPlot from "../../shared/vendor/uplot.esm.js";
import { beginningOf } from "./days.js";
import { daysRange, valuesRange, WHOLE_STEPS } from "./plot_scales.js";

/** @import { Usage } from "../../shared/api_types.js" */

/** @typedef {[label: string, field: keyof Usage, colour: string][]} Lines */

// A plot: title, value formatter, whether it has a column per day instead of lines, and series: [name, field, colour].
/** @type {[title: string, write: (value: number) => string, columns: boolean, lines: Lines][]} */
const PLOTS = [
  ["Messages", compact, true, [["Messages", "messages", "--dm-chart-1"], ["Conversations", "conversations", "--dm-chart-2"]]],
  ["Tokens", compact, true, [["Prompt", "prompt_tokens", "--dm-chart-2"], ["Completion", "completion_tokens", "--dm-chart-1"]]],
  ["Time to first token", seconds, false, [["95th percentile", "ttft_p95_ms", "--dm-chart-2"], ["Median", "ttft_p50_ms", "--dm-chart-1"]]],
  ["Tokens per second", rate, false, [["Median", "tokens_per_second_p50", "--dm-chart-1"]]],
  ["Users", compact, true, [["Users", "users", "--dm-chart-1"]]],
  ["Ratings", compact, true, [["Liked", "thumbs_up", "--dm-chart-1"], ["Disliked", "thumbs_down", "--dm-chart-3"]]],
];
const HEIGHT = 180;
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

const dark = matchMedia("(prefers-color-scheme: dark)");

export class Plots {
  /** @type {Usage[]} */
  #days = [];
  /** @type {{plot: uPlot, frame: HTMLElement}[]} */
  #plots = [];

  constructor() {
    this.element = make("div", { class: "dk-plots" });
    this.redraw = () => this.#draw();
    dark.addEventListener("change", this.redraw);
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.element);
  }

  /** @param {Usage[]} days */
  show(days) {
    this.#days = days;
    this.#draw();
  }

  close() {
    dark.removeEventListener("change", this.redraw);
    this.resizing.disconnect();
    this.#destroy();
  }

  #destroy() {
    for (const { plot } of this.#plots) plot.destroy();
    this.#plots = [];
  }

  #resize() {
    for (const { plot, frame } of this.#plots) {
      if (frame.clientWidth && frame.clientWidth !== plot.width) plot.setSize({ width: frame.clientWidth, height: HEIGHT });
    }
  }

  #draw() {
    this.#destroy();
    this.element.replaceChildren();
    for (const [title, write, columns, lines] of PLOTS) {
      const label = `${title} by day. The table below has the numbers.`;
      const frame = make("div", { class: "dk-plot-frame", role: "img", "aria-label": label });
      this.element.append(make("figure", { class: "dm-card dk-plot" }, make("figcaption", {}, title), frame));
      const data = [this.#days.map(({ name }) => beginningOf(name)), ...lines.map(([, field]) => this.#days.map((day) => /** @type {number | null} */ (day[field])))];
      const plot = new uPlot(options(frame, frame.clientWidth || 300, write, columns, lines), data, frame);
      this.#plots.push({ plot, frame });
    }
  }
}

/**
 * The colour of a design token in words that a canvas knows: the token itself has a value for each mode.
 * @param {string} token
 * @param {HTMLElement} place
 */
function colourOf(token, place) {
  const sample = make("span");
  sample.style.color = `var(${token})`;
  place.append(sample);
  const { color } = getComputedStyle(sample);
  sample.remove();
  return color;
}

/**
 * @param {HTMLElement} frame
 * @param {number} width
 * @param {(value: number) => string} write
 * @param {boolean} columns
 * @param {Lines} lines
 * @returns {import("../../shared/vendor/uplot.esm.js").Options}
 */
function options(frame, width, write, columns, lines) {
  /** @param {string} token */
  const colour = (token) => colourOf(token, frame);
  const axis = { stroke: colour("--dm-muted"), font: FONT, grid: { stroke: colour("--dm-line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "usage" }, points: { size: 7 } },
    scales: {
      x: { range: (_plot, first, last) => daysRange(first, last) },
      y: { range: (_plot, _min, max) => valuesRange(max) },
    },
    axes: [
      { ...axis, size: 28, space: 56, values: [[86_400, "{D} {MMM}", null, null, null, null, null, null, 0]], grid: { show: false } },
      { ...axis, size: 58, incrs: write === rate ? undefined : WHOLE_STEPS, values: (_plot, ticks) => ticks.map(write) },
    ],
    series: [
      { label: "Day", value: (_plot, at) => (at === null || at === undefined ? "–" : new Date(at * 1000).toLocaleDateString()) },
      ...lines.map(([label, , name]) => ({
        label,
        stroke: colour(name),
        fill: columns ? colour(name).replace(")", ", 0.25)") : undefined,
        width: columns ? 1 : 2,
        paths: columns ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined,
        spanGaps: true,
        points: { show: columns ? false : undefined, size: 6, fill: colour(name) },
        value: (/** @type {uPlot} */ _plot, /** @type {number | null | undefined} */ value) => (value === null || value === undefined ? "–" : write(value)),
      })),
    ],
  };
}

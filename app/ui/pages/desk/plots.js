// Plots of figures by day. The table below them has the same numbers.

import { make } from "../../shared/dom.js";
import uPlot from "../../shared/vendor/uplot.esm.js";
import { beginningOf } from "./days.js";
import { daysRange, valuesRange } from "./plot_scales.js";

/** @typedef {[label: string, field: string, colour: string][]} Lines */

/**
 * What a plot shows. `columns`: a column per day instead of lines. `lines`: a name, a field of the days and a colour each.
 * `steps`: between the ticks of its values; undefined: any.
 * @typedef {[title: string, write: (value: number) => string, columns: boolean, lines: Lines, steps?: number[]]} PlotSpec
 */

/** Figures of a day, named by its date. @typedef {{name: string}} Day */

const HEIGHT = 180;
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

const dark = matchMedia("(prefers-color-scheme: dark)");

export class Plots {
  /** @type {Day[]} */
  #days = [];
  /** @type {{plot: uPlot, frame: HTMLElement}[]} */
  #plots = [];

  /** @param {PlotSpec[]} specs */
  constructor(specs) {
    this.specs = specs;
    this.element = make("div", { class: "dk-plots" });
    this.redraw = () => this.#draw();
    dark.addEventListener("change", this.redraw);
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.element);
  }

  /** @param {Day[]} days */
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
    for (const [title, write, columns, lines, steps] of this.specs) {
      const label = `${title} by day. The table below has the numbers.`;
      const frame = make("div", { class: "dk-plot-frame", role: "img", "aria-label": label });
      this.element.append(make("figure", { class: "dm-card dk-plot" }, make("figcaption", {}, title), frame));
      const data = [this.#days.map(({ name }) => beginningOf(name)), ...lines.map(([, field]) => this.#days.map((day) => /** @type {Record<string, any>} */ (day)[field]))];
      const isSingle = this.#days.length === 1; // no line can be drawn
      const plot = new uPlot(options(frame, frame.clientWidth || 300, write, columns, lines, steps, isSingle), data, frame);
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
 * @param {number[] | undefined} steps
 * @param {boolean} isSingle  there is one day only: lines are drawn as points
 * @returns {import("../../shared/vendor/uplot.esm.js").Options}
 */
function options(frame, width, write, columns, lines, steps, isSingle) {
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
      { ...axis, size: 58, incrs: steps, values: (_plot, ticks) => ticks.map(write) },
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
        points: { show: columns ? false : isSingle || undefined, size: 6, fill: colour(name) },
        value: (/** @type {uPlot} */ _plot, /** @type {number | null | undefined} */ value) => (value === null || value === undefined ? "–" : write(value)),
      })),
    ],
  };
}

// A small picture in each control, drawn anew when its value changes. For the eye alone: the sentence beside it says the same.

import { HEIGHT, shapesOf, WIDTH } from "./setting_shapes.js";

const SVG = "http://www.w3.org/2000/svg";

export class SettingPictures {
  /** @type {Map<string, {svg: SVGElement, shown: string | null}>} by the setting's name */
  #pictures = new Map();

  /**
   * @param {HTMLElement} root  has the controls
   * @param {string[]} names  of settings
   */
  constructor(root, names) {
    for (const name of names) {
      const control = root.querySelector(`.dm-control-${name}`);
      if (!control || shapesOf(name, 1).length === 0) continue;
      const svg = draw("svg", { class: "dm-setting-picture", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true", focusable: "false" });
      control.append(svg);
      this.#pictures.set(name, { svg, shown: null });
    }
  }

  /** @param {Record<string, any>} values  as the controls show them */
  show(values) {
    for (const [name, picture] of this.#pictures) {
      const key = JSON.stringify(values[name] ?? null);
      if (key === picture.shown) continue;
      picture.shown = key;
      picture.svg.replaceChildren(...shapesOf(name, values[name]).map(({ kind, ...place }) => draw("rect", { class: `dm-shape-${kind}`, rx: 1, ...place })));
    }
  }
}

/** @param {string} tag @param {Record<string, string | number>} attributes */
function draw(tag, attributes) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? String(Math.round(value * 10) / 10) : value);
  return element;
}

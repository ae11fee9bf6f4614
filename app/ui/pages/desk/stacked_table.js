// A table of words. On a phone its cells stand below each other, each behind the name of its column (desk.css).

import { make } from "../../shared/dom.js";

const ACTIONS = "Actions"; // a column of buttons: they say for themselves what they do

/**
 * The roles are set: a table that is laid out as blocks is no table any more to some screen readers.
 * @param {string} label
 * @param {string[]} columns
 * @param {HTMLTableSectionElement} body  of rows by `stackedRow`
 */
export function stackedTable(label, columns, body) {
  body.setAttribute("role", "rowgroup");
  const heads = columns.map((name) => make("th", { scope: "col", role: "columnheader" }, name === ACTIONS ? make("span", { class: "dm-hidden" }, name) : name));
  return make(
    "div",
    { class: "dk-table dk-stacked", tabindex: "0", role: "region", "aria-label": label },
    make("table", { role: "table" }, make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), body),
  );
}

/**
 * @param {string[]} columns
 * @param {Record<string, string | null>} attributes
 * @param {HTMLTableCellElement[]} cells  one for each column; a `th` is the heading of its row
 */
export function stackedRow(columns, attributes, ...cells) {
  for (const [index, cell] of cells.entries()) {
    const isHeading = cell.tagName === "TH";
    cell.setAttribute("role", isHeading ? "rowheader" : "cell");
    if (!isHeading && columns[index] !== ACTIONS) cell.dataset.column = columns[index];
  }
  return make("tr", { ...attributes, role: "row" }, ...cells);
}

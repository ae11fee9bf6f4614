// The versions of a prompt or canned reply: each can be viewed, and an admin can restore it.

import { make } from "../../shared/dom.js";
import { button } from "./controls.js";
import { sourceText, versionName } from "./template_text.js";

/** @import { TemplateView } from "../../shared/api_types.js" */

/**
 * Restores a version. `line` is where it shows what went wrong.
 * @typedef {(version: TemplateView, line: HTMLElement) => unknown} Restore
 */

/** @param {TemplateView} current @param {TemplateView[]} versions @param {Restore | null} restore  null if the viewer may not */
export const versionList = (current, versions, restore) =>
  make("ol", { class: "dk-versions" }, ...versions.map((version) => item(current, version, restore)));

/** @param {TemplateView} current @param {TemplateView} version @param {Restore | null} restore */
function item(current, version, restore) {
  const name = versionName(version);
  const text = make("pre", { hidden: true }, version.template.body);
  const view = button("View", () => {
    text.hidden = !text.hidden;
    view.setAttribute("aria-expanded", String(!text.hidden));
  }, { "aria-expanded": "false", "aria-label": `View ${name}` });
  const line = make("div", { class: "dk-version" }, make("span", {}, `${name}${version.removed ? " (removed)" : ""}, ${sourceText(version)}`), view);
  if (version.version === current.version && !current.removed) line.append(make("em", {}, "in use"));
  else if (restore) line.append(button("Restore", () => restore(version, line), { "aria-label": `Restore ${name}` }));
  return make("li", {}, line, text);
}

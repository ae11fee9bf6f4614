// Draws Markdown that grows, on strings, as the page does with elements.

import assert from "node:assert/strict";

import { GrowingBlocks } from "../../app/ui/components/chat/markdown_blocks.js";

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (c) => ENTITIES[c]);

/** Where the items or rows of the block at the beginning are, without those of blocks in it. */
function partsOf(html) {
  const isTable = html.startsWith("<table>");
  const parts = [];
  let depth = 0;
  for (const { 0: tag, 1: closes, 2: name, index } of html.matchAll(/<(\/?)(ul|ol|tbody|li|tr)\b[^>]*>/g)) {
    if (name === (isTable ? "tr" : "li")) {
      if (depth !== 1) continue;
      if (closes) parts.at(-1).push(index + tag.length);
      else parts.push([index]);
    } else if ((name === "tbody") === isTable) {
      depth += closes ? -1 : 1;
      if (depth === 0) return parts;
    }
  }
  return parts;
}

/** The block so far with its first parts, and what follows them: what the page does with elements. */
function goOn(before, html, kept) {
  const parts = partsOf(before);
  assert.ok(parts.length >= kept, "what is kept is there");
  const last = parts[kept - 1][1];
  const next = partsOf(html);
  const end = "</table>\n"; // of a table without another row
  if (next.length === 0) return `${before.slice(0, last)}\n</tbody>${html.slice(html.indexOf(end))}`;
  return `${before.slice(0, last)}\n${html.slice(next[0][0])}`;
}

/** Draws text in pieces, as the page does with elements: `html` as it is shown while the text may still grow. */
export function draw(text, step) {
  const blocks = new GrowingBlocks();
  let complete = "";
  let growing = "";
  let code = null;
  const kinds = [];
  let drawn = 0; // characters of HTML
  for (let at = 0; at < text.length; at += step) {
    blocks.append(text.slice(at, at + step));
    const drawing = blocks.draw();
    kinds.push("appended" in drawing ? "appended" : "drawn");
    if ("appended" in drawing) {
      code += drawing.appended;
      continue;
    }
    drawn += drawing.complete.length + drawing.growing.length;
    const first = drawing.complete === "" ? "growing" : "complete";
    if (drawing.kept > 0) drawing[first] = goOn(growing, drawing[first], drawing.kept);
    complete += drawing.complete;
    growing = drawing.growing;
    code = drawing.code;
  }
  const tail = code === null ? growing : growing.replace(/(<code[^>]*>)[^<]*/, (_all, tag) => tag + escape(code));
  return { html: complete + tail, ended: blocks.redrawn ?? complete + tail, kinds, drawn };
}

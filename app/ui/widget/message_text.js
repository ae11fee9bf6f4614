// Texts of messages as trees of elements: Markdown's plain parts for the bot's, links alone for people's. Nothing in a
// text becomes HTML: every leaf is a text node, and links lead to http, https and mailto.

import { lex } from "../components/chat/markdown_blocks.js";

/** @import { Token } from "../shared/vendor/marked.esm.js" */

/** @typedef {string | {tag: keyof HTMLElementTagNameMap, attributes?: Record<string, string>, children: Tree[]}} Tree */

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const ADDRESS = /\bhttps?:\/\/[^\s<>"]+[^\s<>".,;:!?)\]}'’»]/g;

/** @param {string} text */
export const markdownTree = (text) => blocks(lex(text));

/** A person's text: its lines as they are, its addresses as links. @param {string} text @returns {Tree[]} */
export function plainTree(text) {
  /** @type {Tree[]} */
  const parts = [];
  let end = 0;
  for (const { 0: address, index } of text.matchAll(ADDRESS)) {
    parts.push(text.slice(end, index), link(address, [address]));
    end = index + address.length;
  }
  parts.push(text.slice(end));
  return [{ tag: "p", attributes: { class: "dw-plain" }, children: parts.filter((part) => part !== "") }];
}

/** @param {Tree[]} tree @returns {Node[]} */
export function toNodes(tree) {
  return tree.map((part) => {
    if (typeof part === "string") return document.createTextNode(part);
    const element = document.createElement(part.tag);
    for (const [name, value] of Object.entries(part.attributes ?? {})) element.setAttribute(name, value);
    element.append(...toNodes(part.children));
    return element;
  });
}

/** @param {string} href @param {Tree[]} children @returns {Tree} */
function link(href, children) {
  if (!SAFE_LINK.test(href)) return { tag: "span", children };
  return { tag: "a", attributes: { href, target: "_blank", rel: "noopener noreferrer nofollow" }, children };
}

/** @param {any} value @returns {Token[]} */
const list = (value) => (Array.isArray(value) ? value : []);

/** @param {Token[]} tokens @returns {Tree[]} */
const blocks = (tokens) => tokens.flatMap(block);

/** @param {Token} token @returns {Tree[]} */
function block(token) {
  const text = token.text ?? token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [{ tag: "p", attributes: { class: "dw-heading", dir: "auto" }, children: inline(list(token.tokens)) }];
    case "paragraph":
      return [{ tag: "p", attributes: { dir: "auto" }, children: inline(list(token.tokens)) }];
    case "text":
      return token.tokens ? inline(list(token.tokens)) : [text];
    case "code":
      return [{ tag: "pre", attributes: { dir: "ltr", tabindex: "0" }, children: [{ tag: "code", children: [text] }] }];
    case "blockquote":
      return [{ tag: "blockquote", attributes: { dir: "auto" }, children: blocks(list(token.tokens)) }];
    case "list": {
      const items = list(token.items).map((item) => /** @type {Tree} */ ({ tag: "li", children: blocks(list(item.tokens)) }));
      /** @type {Record<string, string>} */
      const start = token.ordered && Number.isInteger(token.start) && token.start !== 1 ? { start: String(token.start) } : {};
      return [{ tag: token.ordered ? "ol" : "ul", attributes: { dir: "auto", ...start }, children: items }];
    }
    case "hr":
      return [{ tag: "hr", children: [] }];
    default: // tables and HTML: as they are written
      return [{ tag: "p", attributes: { class: "dw-plain", dir: "auto" }, children: [token.raw.trimEnd()] }];
  }
}

/** @param {Token[]} tokens @returns {Tree[]} */
const inline = (tokens) => tokens.flatMap(span);

/** @param {Token} token @returns {Tree[]} */
function span(token) {
  const text = token.text ?? token.raw;
  const inside = () => inline(list(token.tokens));
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return [{ tag: token.type, children: inside() }];
    case "codespan":
      return [{ tag: "code", attributes: { dir: "ltr" }, children: [text] }];
    case "br":
      return [{ tag: "br", children: [] }];
    case "link":
      return [link(String(token.href), inside())];
    case "image": // nothing is loaded for a text
      return [link(String(token.href), [text || String(token.href)])];
    case "html":
      return [token.raw];
    default:
      return token.tokens ? inside() : [text];
  }
}

// Footnotes in Markdown, as extensions of the parser: [^1] in the text, and "[^1]: ..." where the note stands.

/** @typedef {import("../../shared/vendor/marked.esm.js").Token} Token */

// Labels as people and models write them. Shorter words are more likely a character class, such as [^abc].
const LABEL = "\\d{1,3}|[a-zA-Z]{1,12}[-_]?\\d{1,3}|[a-zA-Z][\\w-]{3,31}";
const MARK = new RegExp(`^\\[\\^(${LABEL})\\]`);
// The note's lines: a paragraph, as far as no further note begins.
const NOTE = new RegExp(`^ {0,3}\\[\\^(${LABEL})\\]:[ \\t]+((?:(?!\\n[ \\t]*(?:\\n|\\[\\^))[^])+)(?:\\n+|$)`);
const NEXT_NOTE = new RegExp(`\\n(?: {0,3}\\[\\^(${LABEL})\\]:|[ \\t]*\\n)`); // in this paragraph

/** @param {(text: string) => string} escapeHtml */
export function footnoteExtensions(escapeHtml) {
  return [
    {
      name: "footnote",
      level: "block",
      /** @param {string} source */
      start: (source) => {
        const found = NEXT_NOTE.exec(source);
        return found?.[1] ? found.index + 1 : undefined;
      },
      /**
       * @this {{lexer: {inline(source: string, tokens: Token[]): unknown}}}
       * @param {string} source
       */
      tokenizer(source) {
        const found = NOTE.exec(source);
        if (!found) return undefined;
        /** @type {Token & {tokens: Token[]}} */
        const token = { type: "footnote", raw: found[0], label: found[1], tokens: [], mayChange: !found[0].endsWith("\n\n") };
        this.lexer.inline(found[2].trim().replace(/\n[ \t]+/g, "\n"), token.tokens);
        return token;
      },
      /** @this {import("../../shared/vendor/marked.esm.js").Renderer} @param {any} token */
      renderer(token) {
        return `<p class="footnote"><sup class="footnote-of">${escapeHtml(token.label)}</sup> ${this.parser.parseInline(token.tokens)}</p>\n`;
      },
    },
    {
      name: "footnoteMark",
      level: "inline",
      /** @param {string} source */
      start: (source) => {
        const index = source.indexOf("[^");
        return index === -1 ? undefined : index;
      },
      /** @param {string} source */
      tokenizer: (source) => {
        const found = MARK.exec(source);
        return found ? { type: "footnoteMark", raw: found[0], label: found[1] } : undefined;
      },
      /** @param {any} token */
      renderer: (token) => `<sup class="footnote-mark">${escapeHtml(token.label)}</sup>`,
    },
  ];
}

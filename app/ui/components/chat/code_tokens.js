// Highlighted code as plain data: which part of it is what. Needs no page, and runs in the worker too.

/** A piece of code and its kind, or "" for none. @typedef {[kind: string, text: string]} Piece */

export const PART_CHARACTERS = 2000; // of code that get their colours at once, at least

/** The names of languages by the file of their grammar. @type {Record<string, string>} */
const NAMES = {
  bash: "sh zsh",
  c: "h",
  cmake: "",
  cpp: "c++ cc hpp cxx",
  csharp: "cs c#",
  css: "",
  dart: "",
  diff: "patch",
  dockerfile: "docker",
  elixir: "ex exs",
  go: "golang",
  graphql: "gql",
  groovy: "gradle",
  haskell: "hs",
  http: "https",
  ini: "toml",
  java: "jsp",
  javascript: "js jsx mjs cjs node",
  json: "json5 jsonc",
  julia: "jl",
  kotlin: "kt kts",
  latex: "tex",
  lua: "",
  makefile: "make mk",
  markdown: "md",
  matlab: "octave",
  nginx: "",
  nix: "",
  objectivec: "objc objective-c",
  perl: "pl",
  php: "",
  powershell: "ps1 pwsh",
  properties: "env dotenv",
  protobuf: "proto",
  python: "py python3 gyp",
  r: "",
  ruby: "rb",
  rust: "rs",
  scala: "",
  scss: "sass less",
  shell: "console shellsession",
  sql: "postgresql mysql sqlite pgsql",
  swift: "",
  typescript: "ts tsx",
  xml: "html svg xhtml vue svelte",
  yaml: "yml",
};
const GRAMMARS = new Map(Object.entries(NAMES).flatMap(([file, names]) => [file, ...names.split(" ")].map((name) => [name, file])));

/** The file of a language's grammar; undefined: its code is shown without colours. @param {string} language */
export const grammarOf = (language) => (language === "" ? undefined : GRAMMARS.get(language.toLowerCase()));

/** Kinds by the scopes of highlight.js: https://highlightjs.readthedocs.io/en/latest/css-classes-reference.html */
const KINDS = new Map(
  Object.entries({
    keyword: "keyword literal operator built_in selector-tag template-tag name",
    string: "string regexp char link addition code",
    number: "number symbol bullet",
    comment: "comment quote doctag",
    title: "title section function selector-id selector-class",
    type: "type class attr attribute params-type selector-attr selector-pseudo property",
    meta: "meta variable template-variable",
    removed: "deletion",
  }).flatMap(([kind, scopes]) => scopes.split(" ").map((scope) => [scope, kind])),
);

/** @type {Record<string, string>} */
const CHARACTERS = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

/**
 * The pieces in the HTML of highlight.js, which has spans and five entities only. A span without a kind has the kind
 * around it.
 * @param {string} html @returns {Piece[]}
 */
export function readPieces(html) {
  /** @type {Piece[]} */
  const pieces = [];
  const kinds = [""];
  for (const [part] of html.matchAll(/<span class="[^"]*">|<\/span>|[^<]+/g)) {
    if (part === "</span>") kinds.pop();
    else if (part.startsWith("<span")) {
      const scope = /hljs-([\w-]+?)_*(?=[ "])/.exec(part)?.[1] ?? "";
      kinds.push(scope === "subst" ? "" : (KINDS.get(scope) ?? kinds[kinds.length - 1]));
    } else {
      const kind = kinds[kinds.length - 1];
      const text = part.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => CHARACTERS[entity]);
      const last = pieces.at(-1);
      if (last && last[0] === kind) last[1] += text;
      else pieces.push([kind, text]);
    }
  }
  return pieces;
}

/**
 * Divides pieces into parts that end with a line, of `size` characters or a little more: a text that grows keeps its
 * first parts.
 * @param {Piece[]} pieces @param {number} size @returns {Piece[][]}
 */
export function divide(pieces, size) {
  /** @type {Piece[][]} */
  const parts = [];
  /** @type {Piece[]} */
  let part = [];
  let length = 0;
  for (const [kind, text] of pieces) {
    let rest = text;
    while (length + rest.length >= size) {
      const end = rest.indexOf("\n", Math.max(0, size - length - 1)) + 1;
      if (end === 0) break; // the part ends with a later piece's line
      part.push([kind, rest.slice(0, end)]);
      parts.push(part);
      part = [];
      length = 0;
      rest = rest.slice(end);
    }
    if (rest !== "") part.push([kind, rest]);
    length += rest.length;
  }
  if (part.length > 0) parts.push(part);
  return parts;
}

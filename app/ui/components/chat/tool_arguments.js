// The arguments of a call as the user reads them before it may run: nothing is shown other than it is sent.

// A string, a sign of the structure, or a number, true, false or null.
const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g;
// Marks that reorder the text around them, and characters that cannot be seen.
const UNSEEN = /[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]|\udb40[\udc00-\udc7f]/g;

/**
 * JSON with line breaks, with each number as it was written: as a JavaScript number a long one is another one. Text that
 * is not JSON stays as it is.
 * @param {string} text
 */
export function readableArguments(text) {
  return (isJson(text) ? withLineBreaks(text) : text).replace(UNSEEN, escaped);
}

/** @param {string} text */
function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} json */
function withLineBreaks(json) {
  let depth = 0;
  let written = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = json.match(TOKEN) ?? [];
  for (const [index, token] of tokens.entries()) {
    if ("{[".includes(token)) {
      depth++;
      written += token + ("}]".includes(tokens[index + 1]) ? "" : line());
    } else if ("}]".includes(token)) {
      depth--;
      written += ("{[".includes(tokens[index - 1]) ? "" : line()) + token;
    } else if (token === ",") written += token + line();
    else if (token === ":") written += ": ";
    else written += token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token;
  }
  return written;
}

/** A character as JSON escapes it. @param {string} character */
function escaped(character) {
  const units = Array.from({ length: character.length }, (_, index) => character.charCodeAt(index));
  return units.map((unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("");
}

// The numbers of citations in a reply's Markdown, read as app/domain/citations.py reads them.

const FENCE = /^ *(`{3,})[^`]*$/;
// An escaped character, a span of code, or a number in brackets with the space before it.
const PARTS = /\\.|(`+)(?:(?!`).*?(?<!`)\1(?!`))?|([ \t]*)\[([1-9][0-9]{0,2})\]/g;

/**
 * Replaces the numbers in brackets, and the space before each, outside code.
 * @param {string} text
 * @param {(number: number, space: string) => string | null} replace  null: it stays
 */
export function replaceNumbers(text, replace) {
  let fence = "";
  const lines = text.split("\n").map((line) => {
    const bare = line.trim();
    if (fence !== "") {
      if (/^`+$/.test(bare) && bare.length >= fence.length) fence = "";
      return line;
    }
    const opened = FENCE.exec(line);
    if (opened) {
      fence = /** @type {string} */ (opened[1]);
      return line;
    }
    return line.replace(PARTS, (whole, _ticks, space, number) => (number === undefined ? whole : (replace(Number(number), space) ?? whole)));
  });
  return lines.join("\n");
}

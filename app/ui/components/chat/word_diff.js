// The difference of two texts, word by word.

const MAX_WORDS = 2000; // between the common beginning and end: comparing takes time in the square of their number

/** A word of a text and where it stands. @typedef {{text: string, start: number, end: number}} Word */

/** @param {string} text @returns {Word[]} */
export function wordsOf(text) {
  return [...text.matchAll(/\S+/g)].map((match) => ({ text: match[0], start: match.index, end: match.index + match[0].length }));
}

/**
 * Which words of each text the other does not have, in order; null if the texts are too long to tell.
 * @param {string[]} left @param {string[]} right
 * @returns {{left: boolean[], right: boolean[]} | null}
 */
export function differingWords(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  let end = 0;
  while (end < left.length - start && end < right.length - start && left[left.length - 1 - end] === right[right.length - 1 - end]) end++;
  const rows = left.length - start - end;
  const columns = right.length - start - end;
  if (Math.max(rows, columns) > MAX_WORDS) return null;
  // lengths[i][j]: how many words the rest of the left text from i and of the right one from j have in common, in order
  const width = columns + 1;
  const lengths = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      const isSame = left[start + i] === right[start + j];
      lengths[i * width + j] = isSame ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const differs = { left: left.map(() => false), right: right.map(() => false) };
  let [i, j] = [0, 0];
  while (i < rows || j < columns) {
    if (i < rows && j < columns && left[start + i] === right[start + j]) {
      i++;
      j++;
    } else if (j === columns || (i < rows && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      differs.left[start + i++] = true;
    } else {
      differs.right[start + j++] = true;
    }
  }
  return differs;
}

/**
 * Marks of several texts: in each but the first, the words that the first does not have; in the first, those that no
 * other has. Null for a text that is too long to compare.
 * @param {string[][]} texts  the words of each
 * @returns {(boolean[] | null)[]}
 */
export function markedWords(texts) {
  const [first, ...others] = texts;
  const differences = others.map((other) => differingWords(first, other));
  const told = differences.filter((each) => each !== null);
  const ofFirst = told.length === 0 ? null : first.map((_, index) => told.every(({ left }) => left[index]));
  return [ofFirst, ...differences.map((each) => each && each.right)];
}

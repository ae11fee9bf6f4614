// Reads rows with settings as JSON from standard input, and writes the shares that the page's filters leave, and what
// removed each token. tests/app/ui/test_lens_filters.py compares them with the engine's sampler.

import { text } from "node:stream/consumers";

import { choose, readScores } from "../../app/ui/components/chat/lens_filters.js";

const found = JSON.parse(await text(process.stdin)).map(({ data, row, settings }) => {
  const { weights, total, count, removedBy } = choose(readScores(new Uint8Array(Buffer.from(data, "base64")), row, settings), settings);
  return { shares: [...weights].map((weight) => weight / total), count, removed: [...weights.keys()].map(removedBy) };
});
process.stdout.write(JSON.stringify(found));

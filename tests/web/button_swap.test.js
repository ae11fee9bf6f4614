import assert from "node:assert/strict";
import { test } from "node:test";

import { ButtonSwap } from "../../app/ui/components/composer/button_swap.js";

const click = (timeStamp) => ({ detail: 1, timeStamp });
const key = (timeStamp) => ({ detail: 0, timeStamp });

test("a double click on Send does not stop the reply", () => {
  const swap = new ButtonSwap();
  assert.equal(swap.isLate("send", click(1000)), false);
  swap.swapped(1100);
  assert.equal(swap.isLate("stop", click(1200)), true);
  assert.equal(swap.isLate("stop", click(1300)), false, "a third one is meant");
});

test("a reply can be stopped at once where it was sent by a key", () => {
  const swap = new ButtonSwap();
  swap.swapped(1000);
  assert.equal(swap.isLate("stop", click(1001)), false);
});

test("a click to stop a reply that has just ended sends nothing", () => {
  const swap = new ButtonSwap();
  swap.swapped(1000);
  assert.equal(swap.isLate("send", click(1400)), true);
  assert.equal(swap.isLate("send", key(1401)), false, "a key presses what has the focus");
  assert.equal(swap.isLate("send", click(2000)), false);
});

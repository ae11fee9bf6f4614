// When a list that scrolls follows new text.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Following } from "../../app/ui/components/chat/following.js";

/** @param {number} top */
function atTheEnd(top) {
  const following = new Following();
  following.put({ top }, true);
  return following;
}

test("scrolling up by any amount stops it, however often one looks", () => {
  const following = atTheEnd(500);
  following.look({ top: 497, fromEnd: 3 });
  following.look({ top: 490, fromEnd: 10 });
  assert.equal(following.on, false);
  following.look({ top: 490, fromEnd: 10 }); // the event of a movement that new text has seen already
  assert.equal(following.on, false);
});

test("scrolling up in the same frame as new text stops it", () => {
  const following = atTheEnd(500);
  following.look({ top: 490, fromEnd: 60 });
  assert.equal(following.on, false);
});

test("new text alone does not stop it", () => {
  const following = atTheEnd(500);
  following.look({ top: 500, fromEnd: 300 });
  assert.equal(following.on, true);
});

test("content that became shorter does not stop it", () => {
  const following = atTheEnd(500);
  following.look({ top: 450, fromEnd: 0.5 }); // sizes on a scaled screen are no whole numbers
  assert.equal(following.on, true);
});

test("a movement up of less than a pixel does not start it again, nor does content that became shorter", () => {
  const following = atTheEnd(500);
  following.put({ top: 500 }, false); // the wheel turns, and the first frame of its scrolling follows
  following.look({ top: 499.5, fromEnd: 0.5 });
  assert.equal(following.on, false);
  following.look({ top: 450, fromEnd: 0 });
  assert.equal(following.on, false);
});

test("the end starts it again, close to it is enough", () => {
  const following = atTheEnd(500);
  following.look({ top: 100, fromEnd: 400 });
  following.look({ top: 460, fromEnd: 40 });
  assert.equal(following.on, false);
  following.look({ top: 480, fromEnd: 20 });
  assert.equal(following.on, true);
});

test("the program decides whether to follow from where it scrolled to, at first it does", () => {
  const following = new Following();
  assert.equal(following.on, true);
  following.put({ top: 100 }, false);
  following.look({ top: 100, fromEnd: 0 });
  assert.equal(following.on, false);
});

test("where the program scrolled to is no movement of the user's", () => {
  const following = atTheEnd(500);
  following.put({ top: 100 }, true);
  following.look({ top: 100, fromEnd: 400 });
  assert.equal(following.on, true);
});

test("a way to the end is offered where it is out of view", () => {
  const following = atTheEnd(500);
  assert.equal(following.isBehind({ fromEnd: 400 }), false);
  following.look({ top: 490, fromEnd: 10 });
  assert.equal(following.isBehind({ fromEnd: 10 }), false);
  assert.equal(following.isBehind({ fromEnd: 30 }), true);
});

import assert from "node:assert/strict";
import { test } from "node:test";

import { isListed, linesOf, NO_FILTER, tagsOf } from "../../app/ui/components/conversations/listing.js";
import { Redraws } from "../../app/ui/components/conversations/redraws.js";

const now = new Date(2026, 2, 10, 12);

/** @param {string} id @param {object} more */
const conversation = (id, more = {}) => ({ id, title: `Title ${id}`, ...more });

/** @param {number} days ago */
const daysAgo = (days) => new Date(2026, 2, 10 - days, 11).toISOString();

/** The lines as the user reads them. @param {import("../../app/ui/components/conversations/listing.js").Line[]} lines */
const read = (lines) => lines.map((line) => ("heading" in line ? `# ${line.heading}` : line.summary.id));

test("each day has one heading, and rows without a date have none", () => {
  const items = [
    conversation("a", { updated_at: daysAgo(0) }),
    conversation("b", { updated_at: daysAgo(0) }),
    conversation("c", { updated_at: daysAgo(1) }),
  ];
  assert.deepEqual(read(linesOf(items, { now })), ["# Today", "a", "b", "# Yesterday", "c"]);
  assert.deepEqual(read(linesOf([conversation("1"), conversation("2", { updated_at: "no date" })])), ["1", "2"]);
});

test("search results have no headings and keep their order", () => {
  const items = [conversation("a", { updated_at: daysAgo(1) }), conversation("b", { pinned: true })];
  assert.deepEqual(read(linesOf(items, { grouped: false, now })), ["a", "b"]);
});

test("pinned conversations come first, wherever they are in the value", () => {
  const items = [
    conversation("a", { updated_at: daysAgo(0) }),
    conversation("b", { updated_at: daysAgo(3), pinned: true }),
    conversation("c", { updated_at: daysAgo(0) }),
  ];
  assert.deepEqual(read(linesOf(items, { now })), ["# Pinned", "b", "# Today", "a", "c"]);
});

test("no two lines have the same key, in whatever order the days are", () => {
  const items = [0, 1, 0, 1].map((days, index) => conversation(String(index), { updated_at: daysAgo(days) }));
  const keys = linesOf(items, { now }).map(({ key }) => key);
  assert.equal(keys.length, 8);
  assert.equal(new Set(keys).size, 8);
});

test("a line keeps its key until what it shows changes", () => {
  const [before] = linesOf([conversation("a", { unread: true })]);
  const [same] = linesOf([conversation("a", { unread: true })]);
  const [read] = linesOf([conversation("a", { unread: false })]);
  assert.equal(before?.key, same?.key);
  assert.notEqual(before?.key, read?.key);
});

test("a search finds every word, in the title or a tag, in any case", () => {
  const one = conversation("a", { title: "Rose Quartz", tags: ["Minerals"] });
  for (const query of ["", "quartz", "QUARTZ rose", "  mineral   ro "]) assert.ok(isListed(one, { ...NO_FILTER, query }), query);
  for (const query of ["quartz granite", "rosequartz"]) assert.ok(!isListed(one, { ...NO_FILTER, query }), query);
});

test("a tag has to be the whole tag, and the archive is apart", () => {
  const tagged = conversation("a", { tags: ["urgent"] });
  assert.ok(isListed(tagged, { ...NO_FILTER, tag: "urgent" }));
  assert.ok(!isListed(tagged, { ...NO_FILTER, tag: "urge" }));
  assert.ok(!isListed(conversation("b"), { ...NO_FILTER, tag: "urgent" }));
  assert.ok(!isListed(tagged, { ...NO_FILTER, archived: true }));
  assert.ok(!isListed({ ...tagged, archived: true }, NO_FILTER));
  assert.ok(isListed({ ...tagged, archived: true }, { ...NO_FILTER, archived: true, tag: "urgent" }));
});

test("each tag is offered once", () => {
  const items = [conversation("a", { tags: ["z", "b"] }), conversation("b"), conversation("c", { tags: ["b"] })];
  assert.deepEqual(tagsOf(items), ["b", "z"]);
});

/** A list in which the test says what the user does. @param {string[]} rows */
function handledList(rows = ["held"]) {
  const hands = { isEditing: false, isPressing: false, heldId: /** @type {string | null} */ (null) };
  /** @type {string[]} */
  const drawn = [];
  const redraws = new Redraws(
    () => hands,
    (/** @type {string} */ list, heldId) => {
      drawn.push(list);
      return heldId !== null && rows.includes(heldId);
    },
  );
  return { hands, drawn, redraws };
}

test("a list is drawn at once where nobody touches it", () => {
  const { drawn, redraws } = handledList();
  redraws.request("first");
  assert.deepEqual(drawn, ["first"]);
  redraws.release();
  assert.deepEqual(drawn, ["first"], "and not again");
});

for (const how of /** @type {const} */ (["isEditing", "isPressing"])) {
  test(`${how}: the last list that came meanwhile is drawn after`, () => {
    const { hands, drawn, redraws } = handledList();
    hands[how] = true;
    redraws.request("first");
    redraws.request("second");
    redraws.release();
    assert.deepEqual(drawn, [], "not yet: the user has let go of something else");
    assert.ok(redraws.isPending);
    hands[how] = false;
    redraws.release();
    redraws.release();
    assert.deepEqual(drawn, ["second"]);
  });
}

test("the row with the open menu is drawn once the menu is closed, the others at once", () => {
  const { hands, drawn, redraws } = handledList();
  hands.heldId = "held";
  redraws.request("list");
  assert.deepEqual(drawn, ["list"]);
  hands.heldId = null;
  redraws.release();
  assert.deepEqual(drawn, ["list", "list"]);
  assert.ok(!redraws.isPending);
});

test("a menu whose conversation is gone holds nothing back", () => {
  const { hands, redraws } = handledList([]);
  hands.heldId = "held";
  redraws.request("list");
  assert.ok(!redraws.isPending);
});

test("renaming from the menu: the menu closes while the title is edited already", () => {
  const { hands, drawn, redraws } = handledList();
  hands.heldId = "held";
  redraws.request("list");
  Object.assign(hands, { heldId: null, isEditing: true });
  redraws.release();
  assert.deepEqual(drawn, ["list"]);
  hands.isEditing = false;
  redraws.release();
  assert.deepEqual(drawn, ["list", "list"]);
});

test("a newer list that could be drawn is not followed by an older one", () => {
  const { hands, drawn, redraws } = handledList();
  hands.isPressing = true;
  redraws.request("old");
  hands.isPressing = false;
  redraws.request("new");
  redraws.release();
  assert.deepEqual(drawn, ["new"]);
});

import { FakeChannels, FakeEventSource, FakeLocks, fakeFetch, pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { CrossTab } from "../../app/ui/pages/chat/cross_tab.js";
import { codePoints, TurnEvents } from "../../app/ui/pages/chat/turn_events.js";

const LINGER_MS = 60_000;

let channels;
let locks;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.EventSource = FakeEventSource;
  FakeEventSource.opened = [];
  channels = new FakeChannels();
  locks = new FakeLocks();
});

/** Another tab of the browser. */
const openTab = () => new TurnEvents(new CrossTab(channels.open()), locks);

/** A listener that writes down what it is told. */
function follower() {
  const heard = [];
  const write = (name) => (detail) => heard.push([name, detail]);
  const listener = Object.fromEntries(["text", "toolUse", "progress", "notice", "end", "gone", "connection"].map((name) => [name, write(name)]));
  return {
    listener,
    heard,
    get text() {
      return heard.filter(([name]) => name === "text").map(([, text]) => text).join("");
    },
    get ends() {
      return heard.filter(([name]) => name === "end" || name === "gone").map(([name]) => name);
    },
    get connections() {
      return heard.filter(([name]) => name === "connection").map(([, connected]) => connected);
    },
  };
}

/** Follows a turn in a tab, until the tab's stream is open. */
async function follow(tab, turnId = "t", offset = 0) {
  const reader = follower();
  reader.unfollow = tab.follow(turnId, offset, reader.listener);
  await pass(10);
  if (FakeEventSource.last?.readyState === 0) FakeEventSource.last.accept();
  return reader;
}

const text = (content, offset, turn_id = "t") => FakeEventSource.last.send("text", { turn_id, text: content, offset });
const end = (offset, turn_id = "t") => FakeEventSource.last.send("end", { turn_id, offset, status: "complete" });
const openStreams = () => FakeEventSource.opened.filter((source) => source.isOpen);

test("lengths are in code points, as Python counts them", () => {
  assert.equal(codePoints(""), 0);
  assert.equal(codePoints("é日"), 2);
  assert.equal(codePoints("a😀b"), 3);
  assert.equal(codePoints("👩‍💻"), 3); // two emoji and a joiner
  for (const edge of ["\u{10000}", "\u{10ffff}"]) assert.equal(codePoints(edge), 1);
  assert.equal(codePoints("\ud83d"), 1); // half a pair, as a text that was cut ends
  assert.equal(codePoints("\ud83d\ud83d\ude00"), 2);
  assert.equal(codePoints("\ude00\ud83d"), 2);
});

test("a reply is read from the offset that the page has, to its end", async () => {
  const reader = await follow(openTab(), "t", 3);
  assert.deepEqual(FakeEventSource.last.turns, ["t:3"]);
  text("d", 4);
  text("ef", 6);
  FakeEventSource.last.send("progress", { turn_id: "t", processed: 5, total: 9 });
  FakeEventSource.last.send("notice", { turn_id: "t", message: "Waiting." });
  end(6);
  assert.deepEqual(reader.heard, [
    ["connection", true],
    ["text", "d"],
    ["text", "ef"],
    ["progress", { turn_id: "t", processed: 5, total: 9 }],
    ["notice", "Waiting."],
    ["end", { turn_id: "t", offset: 6, status: "complete" }],
  ]);
});

test("nothing is told of a turn that is no longer followed", async () => {
  const reader = await follow(openTab());
  reader.unfollow();
  text("late", 4);
  end(4);
  assert.equal(reader.text, "");
  assert.deepEqual(reader.ends, []);
});

test("an old follower that leaves does not take a newer one with it", async () => {
  const tab = openTab();
  const old = await follow(tab);
  const current = await follow(tab);
  old.unfollow();
  text("hello", 5);
  assert.equal(old.text, "");
  assert.equal(current.text, "hello");
});

test("text that was shown already is left out, also in the middle of an event and next to emoji", async () => {
  const reader = await follow(openTab(), "t", 2); // has "a😀"
  text("a", 1);
  text("a😀", 2);
  assert.deepEqual(reader.heard, [["connection", true]]);
  text("a😀b😀c", 5);
  assert.equal(reader.text, "b😀c");
});

test("a gap in the text is asked for again, and an end before all the text is not believed", async () => {
  const reader = await follow(openTab());
  text("ab", 2);
  text("ef", 6); // "cd" is missing
  assert.equal(reader.text, "ab");
  await pass(10);
  assert.deepEqual(FakeEventSource.last.turns, ["t:2"]);
  FakeEventSource.last.accept();
  end(6); // without the text
  assert.deepEqual(reader.ends, []);
  await pass(10);
  assert.deepEqual(FakeEventSource.last.turns, ["t:2"]);
  FakeEventSource.last.accept();
  text("cdef", 6);
  end(6);
  assert.equal(reader.text, "abcdef");
  assert.deepEqual(reader.ends, ["end"]);
});

test("a call of a tool is not shown before the text that stands before it", async () => {
  const reader = await follow(openTab());
  text("abc", 3);
  text("f", 6); // "de" is missing
  const use = { id: "1", at: 6 };
  FakeEventSource.last.send("tool_use", { turn_id: "t", use });
  assert.deepEqual(reader.heard.filter(([name]) => name === "toolUse"), []);
  await pass(10);
  FakeEventSource.last.accept();
  assert.deepEqual(FakeEventSource.last.turns, ["t:3"]);
  text("def", 6);
  FakeEventSource.last.send("tool_use", { turn_id: "t", use });
  assert.deepEqual(reader.heard.filter(([name]) => name === "toolUse"), [["toolUse", use]]);
});

test("an end with less text than is shown, after a crash, is the end", async () => {
  const reader = await follow(openTab(), "t", 9);
  end(4);
  assert.deepEqual(reader.ends, ["end"]);
});

test("a lost connection is opened again where it stopped, after a pause that doubles up to five seconds", async () => {
  const reader = await follow(openTab());
  text("ab", 2);
  for (const pause of [400, 800, 1600, 3200, 5000, 5000]) {
    const before = FakeEventSource.opened.length;
    FakeEventSource.last.fail();
    await pass(pause - 1);
    assert.equal(FakeEventSource.opened.length, before, `opened again before ${pause} ms`);
    await pass(1);
    assert.equal(FakeEventSource.opened.length, before + 1);
  }
  assert.deepEqual(FakeEventSource.last.turns, ["t:2"]);
  assert.equal(openStreams().length, 1);
  FakeEventSource.last.accept();
  text("c", 3);
  assert.equal(reader.text, "abc");
  assert.deepEqual(reader.connections, [true, false, false, false, false, false, false, true]);
  FakeEventSource.last.fail();
  const before = FakeEventSource.opened.length;
  await pass(400);
  assert.equal(FakeEventSource.opened.length, before + 1, "a connection that was open starts with the short pause");
});

test("a refused stream asks for the account, which leads to the sign-in page if the session has ended", async () => {
  const requests = fakeFetch({ "GET /api/account": [401, { error: { code: "other", message: "No." } }] });
  await follow(openTab());
  FakeEventSource.last.fail();
  assert.equal(requests.length, 0);
  await pass(400);
  FakeEventSource.last.fail({ refused: true });
  assert.deepEqual(requests.map(({ path }) => path), ["/api/account"]);
});

test("two tabs read one stream, each at its own offset", async () => {
  const [first, second] = [await follow(openTab(), "t", 0), await follow(openTab(), "t", 3)];
  assert.equal(FakeEventSource.opened.length, 1, "the second tab needed no new stream");
  text("abcde", 5);
  assert.equal(first.text, "abcde");
  assert.equal(second.text, "de");
  end(5);
  assert.deepEqual([first.ends, second.ends], [["end"], ["end"]]);
});

test("a tab that joins with another turn has both turns in the stream", async () => {
  const first = await follow(openTab(), "t");
  text("ab", 2);
  const second = await follow(openTab(), "u", 7);
  assert.deepEqual(FakeEventSource.last.turns.toSorted(), ["t:2", "u:7"]);
  assert.equal(openStreams().length, 1);
  text("c", 3);
  text("x", 8, "u");
  assert.equal(first.text, "abc");
  assert.equal(second.text, "x");
});

test("all tabs are told that the connection was lost", async () => {
  const [first, second] = [await follow(openTab(), "t"), await follow(openTab(), "u")];
  FakeEventSource.last.fail();
  assert.equal(first.connections.at(-1), false);
  assert.equal(second.connections.at(-1), false);
});

test("when the reading tab is done, another goes on where it is itself", async () => {
  const [first, second] = [await follow(openTab(), "t"), await follow(openTab(), "u")];
  text("ab", 2, "u");
  end(0, "t");
  assert.deepEqual(first.ends, ["end"]);
  text("c", 3, "u");
  await pass(LINGER_MS); // the first tab leaves
  await pass(10);
  assert.equal(openStreams().length, 1);
  assert.deepEqual(FakeEventSource.last.turns, ["u:3"]);
  FakeEventSource.last.accept();
  text("d", 4, "u");
  assert.equal(second.text, "abcd");
});

test("a tab that takes over reads for all tabs that are left", async () => {
  await follow(openTab(), "t");
  const others = [await follow(openTab(), "u"), await follow(openTab(), "v")];
  end(0, "t");
  await pass(LINGER_MS);
  await pass(10);
  assert.deepEqual(FakeEventSource.last.turns.toSorted(), ["u:0", "v:0"]);
  FakeEventSource.last.accept();
  text("a", 1, "u");
  text("b", 1, "v");
  assert.deepEqual(others.map((reader) => reader.text), ["a", "b"]);
});

test("a tab that leaves the queue for the lock does not start a stream later", async () => {
  const first = await follow(openTab(), "t");
  const second = await follow(openTab(), "u");
  second.unfollow();
  await pass(LINGER_MS);
  end(0, "t");
  await pass(LINGER_MS);
  await pass(10);
  assert.deepEqual(first.ends, ["end"]);
  assert.equal(openStreams().length, 0);
});

test("the stream lingers, so that the next reply comes without another request", async () => {
  const tab = openTab();
  await follow(tab, "t");
  end(0);
  await pass(LINGER_MS - 1);
  const expected = tab.expect();
  assert.equal(expected.streamId, FakeEventSource.last.parameters.get("stream_id"));
  const reader = follower();
  tab.follow("next", 0, reader.listener, expected.streamId);
  expected.done();
  await pass(100);
  text("hello", 5, "next");
  assert.equal(reader.text, "hello");
  assert.equal(FakeEventSource.opened.length, 1);
});

test("a stream is closed when nothing was sent for a while, and the next reply opens another", async () => {
  const tab = openTab();
  await follow(tab, "t");
  end(0);
  await pass(LINGER_MS - 1);
  assert.equal(openStreams().length, 1);
  await pass(1);
  assert.equal(openStreams().length, 0);
  assert.equal(tab.expect().streamId, null, "no message asks for its reply in a closed stream");
  await follow(tab, "next");
  assert.deepEqual([FakeEventSource.opened.length, FakeEventSource.last.turns], [2, ["next:0"]]);
});

test("a stream that should carry a reply but stays silent is opened again", async () => {
  const tab = openTab();
  await follow(tab, "t");
  const { streamId } = tab.expect();
  const before = FakeEventSource.opened.length;
  tab.follow("next", 0, follower().listener, streamId);
  await pass(2999);
  assert.equal(FakeEventSource.opened.length, before);
  await pass(1);
  await pass(0);
  assert.equal(FakeEventSource.opened.length, before + 1);
  assert.ok(FakeEventSource.last.turns.includes("next:0"));
});

test("no stream is named while none is open, in any tab", async () => {
  const [first, second] = [openTab(), openTab()];
  assert.equal(second.expect().streamId, null);
  await follow(first, "t");
  assert.equal(second.expect().streamId, FakeEventSource.last.parameters.get("stream_id"));
  FakeEventSource.last.fail();
  assert.equal(first.expect().streamId, null);
  assert.equal(second.expect().streamId, null);
});

test("events that arrive before the response to a sent message are kept for its follower", async () => {
  const tab = openTab();
  await follow(tab, "t");
  const expected = tab.expect();
  text("He", 2, "new");
  text("llo", 5, "new");
  end(5, "new");
  const reader = follower();
  tab.follow("new", 0, reader.listener, expected.streamId);
  expected.done();
  assert.equal(reader.text, "Hello");
  assert.deepEqual(reader.ends, ["end"]);
});

test("early events are kept until the last message that is being sent has its response", async () => {
  const tab = openTab();
  await follow(tab, "t");
  const [one, two] = [tab.expect(), tab.expect()];
  text("He", 2, "new");
  one.done();
  const kept = follower();
  tab.follow("new", 0, kept.listener, two.streamId)();
  assert.equal(kept.text, "He");
  two.done();
  text("lost", 4, "other"); // no message is being sent
  const late = follower();
  tab.expect();
  tab.follow("other", 0, late.listener);
  assert.equal(late.text, "");
});

test("a deleted conversation is gone once", async () => {
  const reader = await follow(openTab());
  FakeEventSource.last.send("gone", { turn_id: "t" });
  FakeEventSource.last.send("gone", { turn_id: "t" });
  assert.deepEqual(reader.ends, ["gone"]);
});

test("without locks or channels each tab reads for itself, and closes its stream at once", async () => {
  const alone = [new TurnEvents(new CrossTab(null), locks), new TurnEvents(new CrossTab(channels.open()), undefined)];
  for (const tab of alone) {
    const reader = await follow(tab);
    text("ab", 2);
    end(2);
    assert.equal(reader.text, "ab");
    await pass(0);
    assert.equal(openStreams().length, 0);
  }
});

test("a lost connection with nothing to follow stays closed", async () => {
  await follow(openTab());
  end(0);
  FakeEventSource.last.fail();
  await pass(10_000);
  await settle();
  assert.equal(FakeEventSource.opened.length, 1);
});

test("thoughts have an offset of their own, and resume in their middle", async () => {
  const reader = follower();
  reader.heard.length = 0;
  reader.listener.reasoning = (detail, { ended }) => reader.heard.push(["reasoning", detail, ended]);
  openTab().follow("t", [2, 3], reader.listener);
  await pass(10);
  FakeEventSource.last.accept();
  assert.deepEqual(FakeEventSource.last.turns, ["t:2.3"]);
  const think = (content, offset, ended = false) =>
    FakeEventSource.last.send("reasoning", { turn_id: "t", text: content, offset, seconds: 1, ended });
  think("abcd", 4); // from the start, as another tab asked for: only the last letter is new
  think("abcd", 4);
  think("e😀", 6);
  think("", 6, true);
  text("x", 3);
  assert.deepEqual(reader.heard.slice(1), [["reasoning", "d", false], ["reasoning", "e😀", false], ["reasoning", "", true], ["text", "x"]]);
  FakeEventSource.last.send("end", { turn_id: "t", offset: 3, reasoning_offset: 8, status: "complete" });
  assert.deepEqual(reader.ends, []); // thoughts were missed: they are asked for
});

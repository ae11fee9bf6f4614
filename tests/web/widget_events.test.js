import { pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { EventParser, EventStream } from "../../app/ui/widget/event_stream.js";

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(Math, "random", () => 0.5);
});

const TEXT = ': a comment\n\nid: 7\nevent: message\ndata: {"a":\ndata: 1}\n\nevent:delta\r\ndata:x: y\r\n\r\ndata: z\n\n';
const EVENTS = [
  { id: "7", name: "message", data: '{"a":\n1}' },
  { id: "7", name: "delta", data: "x: y" },
  { id: "7", name: "message", data: "z" },
];

test("events are read wherever the pieces are cut", () => {
  for (let size = 1; size <= TEXT.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < TEXT.length; at += size) events.push(...parser.push(TEXT.slice(at, at + size)));
    assert.deepEqual(events, EVENTS, `pieces of ${size}`);
  }
});

/** A server of streams: each connection is one of its `opened`. */
class FakeStreams {
  opened = [];

  open = async (lastEventId, signal) => {
    const connection = { lastEventId, signal };
    const body = new ReadableStream({ start: (controller) => (connection.controller = controller) });
    connection.send = (text) => connection.controller.enqueue(new TextEncoder().encode(text));
    this.opened.push(connection);
    if (this.refusal) throw this.refusal;
    return { body };
  };
}

/** Web streams take more turns than promises alone. */
const soon = async () => {
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
};

function follow(streams, goOn = true) {
  const heard = { events: [], connections: [] };
  const stream = new EventStream(streams.open, {
    onEvent: (event) => heard.events.push(event.data),
    onConnection: (isOnline) => heard.connections.push(isOnline),
    onRefusal: () => goOn,
  });
  heard.ended = stream.run();
  return { stream, heard };
}

test("a stream that ends is resumed after the last event that has come", async () => {
  const streams = new FakeStreams();
  const { stream, heard } = follow(streams);
  await soon();
  streams.opened[0].send("id: 4\ndata: a\n\nid: 5\ndata: half of it");
  await soon();
  streams.opened[0].controller.close();
  await soon();
  assert.deepEqual(heard.connections, [true, false]);
  await pass(1000);
  await soon();
  assert.deepEqual(streams.opened.map(({ lastEventId }) => lastEventId), [null, "4"]);
  assert.deepEqual(heard.events, ["a"]);
  stream.close();
});

test("attempts come later and later, and at once when the browser is online again", async () => {
  const streams = new FakeStreams();
  streams.refusal = new Error("no network");
  const { stream } = follow(streams);
  await soon();
  await pass(1000);
  assert.equal(streams.opened.length, 2);
  await pass(1000);
  assert.equal(streams.opened.length, 2);
  await pass(1000);
  assert.equal(streams.opened.length, 3);
  stream.wake();
  await settle();
  assert.equal(streams.opened.length, 4);
  stream.close();
});

test("a connection that says nothing for too long is given up", async () => {
  const streams = new FakeStreams();
  const { stream } = follow(streams);
  await soon();
  await pass(45_000);
  assert.equal(streams.opened[0].signal.aborted, true);
  stream.close();
});

test("a refusal that cannot be helped ends it", async () => {
  const streams = new FakeStreams();
  streams.refusal = new Error("unknown visitor");
  const { heard } = follow(streams, false);
  await heard.ended;
  assert.equal(streams.opened.length, 1);
});

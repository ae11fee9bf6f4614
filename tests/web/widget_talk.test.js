import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { Talk } from "../../app/ui/widget/talk.js";

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] }); // of a stream that is silent
});

const caseOf = (status, more = {}) => ({ status, agent: null, open: true, opens_at: null, rating: false, ...more });
const CLOSED = caseOf("open", { open: false, opens_at: "2999-01-07T08:00:00Z" });
const store = { prefix: "t.", get: () => null, set: () => {}, remove: () => {}, keys: () => [] };

/** Web streams take more turns than promises alone. */
const soon = async () => {
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
};

/** A talk whose session stands: `tell` sends the case as an event, `answers` are called with what a request answers. */
async function startedTalk() {
  const answers = [];
  let stream;
  const api = {
    token: null,
    startSession: async () => ({ token: "t", case: caseOf("bot"), messages: [], contact: {}, inbox: {} }),
    events: async () => new Response(new ReadableStream({ start: (controller) => (stream = controller) })),
    askForPerson: () => new Promise((resolve) => answers.push(resolve)),
  };
  const talk = new Talk(api, store, undefined, { language: "en", time_zone: "UTC" }, () => {});
  await talk.start();
  await soon();
  const tell = async (state) => {
    stream.enqueue(new TextEncoder().encode(`event: case\ndata: ${JSON.stringify(state)}\n\n`));
    await soon();
  };
  return { talk, answers, tell };
}

test("an answer shows the case where no event does", async () => {
  const { talk, answers } = await startedTalk();
  const asked = talk.askForPerson();
  await soon();
  answers[0]({ case: caseOf("open") });
  await asked;
  assert.deepEqual(talk.state.case, caseOf("open"));
});

test("an answer that an event has overtaken does not bring back what was before", async () => {
  const { talk, answers, tell } = await startedTalk();
  const asked = talk.askForPerson();
  await soon();
  await tell(CLOSED);
  answers[0]({ case: caseOf("open") });
  await asked;
  assert.deepEqual(talk.state.case, CLOSED);
});

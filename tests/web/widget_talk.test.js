import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { Store } from "../../app/ui/widget/store.js";
import { Talk } from "../../app/ui/widget/talk.js";

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] }); // of a stream that is silent
});

const caseOf = (status, more = {}) => ({ status, agent: null, open: true, opens_at: null, rating: false, ...more });
const CLOSED = caseOf("open", { open: false, opens_at: "2999-01-07T08:00:00Z" });
const sent = (client_id) => ({ id: "m", text: "Hello", status: "complete", author: { kind: "contact", name: null }, created_at: "2026-11-28T10:00:00Z", client_id });

/** Web streams take more turns than promises alone. */
const soon = async () => {
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
};

/**
 * A talk whose session stands: `tell` sends an event, `answers` are called with what a request answers. The next session
 * comes once `started` is resolved, and has no case.
 */
async function startedTalk(started = Promise.resolve()) {
  const answers = [];
  let stream, sessions = 0;
  const api = {
    token: null,
    startSession: async () => {
      const isFirst = ++sessions === 1;
      if (!isFirst) await started;
      return { token: `t${sessions}`, case: isFirst ? caseOf("bot") : null, messages: [], contact: {}, inbox: {} };
    },
    events: async () => new Response(new ReadableStream({ start: (controller) => (stream = controller) })),
    askForPerson: () => new Promise((resolve) => answers.push(resolve)),
    changeContact: (contact) => new Promise((resolve) => answers.push(() => resolve({ ...contact, verified: false }))),
    write: ({ client_id }) => new Promise((resolve) => answers.push((answer) => resolve({ message: sent(client_id), ...answer }))),
  };
  const talk = new Talk(api, new Store("t.", null), undefined, { language: "en", time_zone: "UTC" }, () => {});
  await talk.start();
  await soon();
  const tell = async (state, event = "case") => {
    stream.enqueue(new TextEncoder().encode(`event: ${event}\ndata: ${JSON.stringify(state)}\n\n`));
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

test("the same holds for the answer to a message", async () => {
  const { talk, answers, tell } = await startedTalk();
  void talk.write("Hello");
  await soon();
  await tell(CLOSED);
  answers[0]({ case: caseOf("bot") });
  await soon();
  assert.deepEqual(talk.state.case, CLOSED);
  assert.deepEqual(talk.state.messages.map(({ id }) => id), ["m"]);
});

test("a session that starts while an answer is on its way is newer", async () => {
  const { talk, answers, tell } = await startedTalk();
  const asked = talk.askForPerson();
  await soon();
  await tell({}, "reset");
  answers[0]({ case: caseOf("open") });
  await asked;
  assert.equal(talk.state.case, null);
});

test("what is answered after the visitor has signed out is not shown to the next one", async () => {
  const started = Promise.withResolvers();
  const { talk, answers } = await startedTalk(started.promise);
  void talk.write("Hello");
  const asked = talk.askForPerson();
  const left = talk.leaveEmail("ada@example.com");
  await soon();
  assert.equal(answers.length, 3);
  const identified = talk.identify(null);
  await soon();
  for (const answer of answers) answer({ case: caseOf("open") });
  await Promise.all([asked, left]);
  await soon();
  const shown = () => [talk.state.case, talk.state.messages, talk.state.contact];
  assert.deepEqual(shown(), [null, [], null]);
  started.resolve();
  await identified;
  assert.deepEqual(shown(), [null, [], {}]);
});

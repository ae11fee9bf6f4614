import { raise, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { parametersText, sizeText, tooSmallText } from "../../app/ui/components/settings/prompt_size.js";
import { commandIn } from "../../app/ui/components/composer/commands.js";
import { CUT_SHORT, DraftState, MAX_VERSIONS } from "../../app/ui/pages/chat/draft_state.js";
import { citedIn, withSourceList, withoutCitations } from "../../app/ui/pages/chat/draft_text.js";
import { ReplyDrafts } from "../../app/ui/pages/chat/reply_drafts.js";
import { changesText } from "../../app/ui/pages/desk/used_drafts.js";

const SOURCES = [1, 2].map((number) => ({ number, document_id: `d${number}`, version: 1, start: 0, end: 1, title: `T${number}`, heading: number === 1 ? "H" : "", text: "…" }));
const version = (text, more = {}) => ({ id: "d", text, sources: SOURCES, notice: "", writing: false, message: "Where?", from: "box", ...more });

/** @type {Map<string, string>} */
let kept;
beforeEach(() => {
  kept = new Map();
  globalThis.window = /** @type {any} */ ({
    sessionStorage: { getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => kept.set(key, text), removeItem: (key) => kept.delete(key) },
  });
});

test("a customer gets the text without its sources' numbers; other brackets and code stay", () => {
  assert.equal(withoutCitations("It lasts [1], see [3] and a[1] [2].\n", SOURCES), "It lasts, see [3] and a.");
  assert.equal(withoutCitations("`x[1]` and \\[1] [2]\n```\ny[1]\n```", SOURCES), "`x[1]` and \\[1]\n```\ny[1]\n```");
  assert.equal(withoutCitations("[1]", []), "[1]");
  assert.deepEqual(citedIn("a [2] `[1]`", SOURCES), [SOURCES[1]]);
  assert.equal(withSourceList("a [2] b [1] ", SOURCES), "a [2] b [1]\n\n[1] T1 > H\n[2] T2");
  assert.equal(withSourceList("a", SOURCES), "a");
  assert.equal(withSourceList("a [1]", [{ ...SOURCES[0], heading: "T1 > H" }]), "a [1]\n\n[1] T1 > H");
});

test("a draft is kept per conversation, with every version; what was being written is cut short by a reload", () => {
  const state = new DraftState("a");
  Object.assign(state, { isOpen: true, message: "Where?", notes: "n", from: "box" });
  state.add(version("one"));
  state.add(version("two, half", { writing: true }));
  state.save();
  const again = DraftState.read("a");
  assert.equal(again.message, "Where?");
  assert.deepEqual(again.versions.map(({ text, notice, writing }) => [text, notice, writing]), [["one", "", false], ["two, half", CUT_SHORT, false]]);
  again.step(-1);
  assert.equal(again.version.text, "one");
  again.step(-1);
  assert.equal(again.at, 0);
  assert.equal(DraftState.read("b").versions.length, 0);
  kept.set("deskmate.reply-draft.a", "{");
  assert.equal(DraftState.read("a").versions.length, 0, "what another version wrote is no reason to fail");
});

test("of very many versions the oldest are dropped, and an empty draft is not kept", () => {
  const state = new DraftState("a");
  for (let number = 0; number < MAX_VERSIONS + 5; number++) state.add(version(String(number)));
  assert.equal(state.versions.length, MAX_VERSIONS);
  assert.equal(state.version.text, String(MAX_VERSIONS + 4));
  state.save();
  assert.equal(kept.size, 1);
  new DraftState("a").save();
  assert.equal(kept.size, 0);
});

/** A page with a panel that writes down what it shows, and a server whose streams the test writes. */
function page({ id = "a", typed = "Where is it?" } = {}) {
  const requests = [];
  const shown = [];
  let current = null;
  const composer = { text: typed, fill: (text) => (composer.text = text), insert: (text) => (composer.text += text), focusAfterDraft: () => undefined };
  const show = (state, options) => {
    current = state;
    shown.push({ ...options, text: state.version?.text ?? null, isOpen: state.isOpen, message: state.message, isForAnother: state.isForAnother });
  };
  const panel = { show, focus: () => undefined, insert: () => false, select: () => undefined };
  const prepared = [];
  const host = {
    lastMessage: () => "The last message",
    rests: () => "",
    notify: () => undefined,
    prepare: async (current, text, onCreated) => {
      prepared.push([current, text]);
      await undefined; // the server takes its time
      if (current === null) onCreated("new");
      return current ?? "new";
    },
  };
  globalThis.fetch = async (path, options = {}) => {
    const stream = new TransformStream();
    const writer = stream.writable.getWriter();
    options.signal?.addEventListener("abort", () => writer.abort(options.signal.reason).catch(() => undefined));
    const request = { path, body: JSON.parse(options.body), say: (name, data) => writer.write(new TextEncoder().encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`)), end: () => writer.close() };
    requests.push(request);
    return options.method === "PUT" ? new Response(null, { status: 204 }) : new Response(stream.readable);
  };
  const drafts = new ReplyDrafts(/** @type {any} */ (composer), /** @type {any} */ (host), /** @type {any} */ (panel));
  drafts.use(id);
  return { drafts, composer, requests, shown, prepared, state: () => current };
}

const turns = async () => {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
  await settle();
};

test("a draft is written from the text in the box, once for two clicks, and its change keeps it as an earlier version", async () => {
  const { drafts, requests, shown } = page();
  drafts.open();
  drafts.open();
  await turns();
  assert.equal(requests.length, 1);
  assert.deepEqual(requests[0].body, { text: "Where is it?", notes: "", draft: "", change: null, stream: true });
  requests[0].say("draft", { id: "1", sources: SOURCES });
  requests[0].say("text", { text: "It is " });
  await turns();
  assert.equal(shown.at(-1).text, "It is ");
  requests[0].say("end", { id: "1", text: "It is there [1].", citations: [], notice: null });
  requests[0].end();
  await turns();
  assert.deepEqual([shown.at(-1).text, shown.at(-1).status], ["It is there [1].", "The draft is ready."]);
  drafts.write("shorter");
  await turns();
  assert.equal(requests[1].body.draft, "It is there [1].");
  requests[1].say("draft", { id: "2", sources: SOURCES });
  requests[1].say("text", { text: "There" });
  await turns();
  drafts.stop();
  await turns();
  assert.deepEqual([shown.at(-1).text, shown.at(-1).status], ["There", "Stopped."]);
  assert.deepEqual(DraftState.read("a").versions.map(({ id, text }) => [id, text]), [["1", "It is there [1]."], ["2", "There"]]);
});

test("what is inserted takes the place of the customer's message, is kept for a review, and nothing is sent", async () => {
  const { drafts, requests, composer } = page();
  drafts.open();
  await turns();
  requests[0].say("draft", { id: "1", sources: SOURCES });
  requests[0].say("end", { id: "1", text: "There [1].", citations: [], notice: null });
  requests[0].end();
  await turns();
  await drafts.insert();
  assert.equal(composer.text, "There.");
  assert.deepEqual(requests.slice(1).map(({ path, body }) => [path, body]), [["/api/conversations/a/drafts/1", { text: "There [1].", used_as: "inserted" }]]);
});

test("a server that dies on the way leaves the text so far, and one that refuses leaves the earlier version", async () => {
  const { drafts, requests, shown } = page();
  drafts.open();
  await turns();
  requests[0].say("draft", { id: "1", sources: [] });
  requests[0].say("text", { text: "It is " });
  requests[0].end();
  await turns();
  assert.equal(shown.at(-1).text, "It is ");
  assert.match(shown.at(-1).error, /stopped while it wrote/);
  globalThis.fetch = async () => new Response(JSON.stringify({ error: { code: "too_many_requests", message: "Wait for one to finish." } }), { status: 429 });
  await drafts.write(null);
  assert.deepEqual([shown.at(-1).text, shown.at(-1).error], ["It is ", "Wait for one to finish."]);
  assert.equal(DraftState.read("a").versions.length, 1);
});

test("a new chat becomes a conversation, and a chat that is left goes on with its draft", async () => {
  const { drafts, requests, shown, prepared } = page({ id: null, typed: "" });
  drafts.open();
  await turns();
  assert.deepEqual(prepared, [[null, "The last message"]]);
  drafts.use("other");
  assert.equal(shown.at(-1).isOpen, false);
  requests[0].say("draft", { id: "1", sources: [] });
  requests[0].say("end", { id: "1", text: "There.", citations: [], notice: null });
  requests[0].end();
  await turns();
  assert.equal(shown.at(-1).text, null);
  drafts.use("new");
  assert.deepEqual([shown.at(-1).text, shown.at(-1).isOpen], ["There.", true]);
  raise("pagehide");
});

test("a message makes a conversation of a new chat: its draft is written there, and not in another one", async () => {
  const { drafts, prepared } = page({ id: null, typed: "" });
  drafts.keepFor("a");
  drafts.open();
  await turns();
  assert.deepEqual(prepared, [["a", "The last message"]]);
  drafts.keepFor("b"); // a draft of a conversation stays there
  raise("pagehide");
  assert.ok(kept.get("deskmate.reply-draft.a"));
});

test("a message that is sent while a draft makes a conversation of its own does not take that draft", async () => {
  const { drafts, shown, prepared } = page({ id: null, typed: "" });
  drafts.open();
  drafts.keepFor("b");
  assert.equal(shown.at(-1).isOpen, false);
  await turns();
  assert.deepEqual(prepared, [[null, "The last message"]]);
  raise("pagehide");
});

test("a new last message gets a draft of its own, but not in place of a message that the user changed", async () => {
  const { drafts, requests, shown } = page({ typed: "" });
  const write = async (text) => {
    drafts.open();
    await turns();
    const request = requests.at(-1);
    request.say("draft", { id: text, sources: [] });
    request.say("end", { id: text, text, citations: [], notice: null });
    request.end();
    await turns();
  };
  await write("one");
  assert.equal(shown.at(-1).isLast, true);
  drafts.open();
  await turns();
  assert.equal(requests.length, 1, "the same message's draft is shown again");
  drafts.host.lastMessage = () => "The toaster";
  drafts.use("a");
  assert.equal(shown.at(-1).isLast, false);
  await write("two");
  assert.deepEqual([requests.length, requests[1].body.text, shown.at(-1).text, shown.at(-1).isLast], [2, "The toaster", "two", true]);
  const state = DraftState.read("a");
  Object.assign(state, { message: "Mine", from: "panel" });
  drafts.use("b");
  state.save();
  drafts.use("a");
  drafts.open();
  await turns();
  assert.equal(requests.length, 2);
  assert.equal(state.message, "Mine");
});

/** Lets the newest request write the whole text. */
async function finish(requests, text) {
  const request = requests.at(-1);
  request.say("draft", { id: text, sources: [] });
  request.say("end", { id: text, text, citations: [], notice: null });
  request.end();
  await turns();
}

test("a message that comes while a draft is written waits until that is done", async () => {
  const { drafts, requests, shown } = page({ typed: "" });
  drafts.open();
  await turns();
  drafts.host.lastMessage = () => "The toaster";
  drafts.open();
  await turns();
  assert.deepEqual([requests.length, shown.at(-1).message, shown.at(-1).isLast], [1, "The last message", false]);
  await finish(requests, "one");
  assert.deepEqual([shown.at(-1).text, shown.at(-1).message], ["one", "The last message"]);
  drafts.open();
  await turns();
  assert.deepEqual([requests.length, requests.at(-1).body.text, shown.at(-1).isLast], [2, "The toaster", true]);
});

test("a new message whose draft fails or is stopped without a word is still to be answered", async () => {
  const { drafts, requests, shown } = page({ typed: "" });
  drafts.open();
  await turns();
  await finish(requests, "one");
  drafts.host.lastMessage = () => "The toaster";
  const { fetch } = globalThis;
  globalThis.fetch = async () => new Response(JSON.stringify({ error: { code: "too_many_requests", message: "Wait." } }), { status: 429 });
  await drafts.open();
  assert.deepEqual([shown.at(-1).text, shown.at(-1).isForAnother, shown.at(-1).message], ["one", true, "The toaster"]);
  globalThis.fetch = fetch;
  drafts.open();
  await turns();
  assert.deepEqual([requests.length, requests.at(-1).body.text, shown.at(-1).isForAnother], [2, "The toaster", false]);
  drafts.stop();
  await turns();
  assert.deepEqual([shown.at(-1).text, shown.at(-1).isForAnother], ["one", true]);
  drafts.open();
  await turns();
  await finish(requests, "two");
  assert.deepEqual([requests.length, shown.at(-1).text, shown.at(-1).isForAnother], [3, "two", false]);
});

test("an earlier version is shown and changed with the message that it answers", async () => {
  const { drafts, requests, shown } = page({ typed: "" });
  drafts.open();
  await turns();
  await finish(requests, "one");
  drafts.host.lastMessage = () => "The toaster";
  drafts.open();
  await turns();
  await finish(requests, "two");
  drafts.step(-1);
  assert.deepEqual([shown.at(-1).text, shown.at(-1).message, shown.at(-1).isLast], ["one", "The last message", false]);
  drafts.open();
  await turns();
  assert.deepEqual([requests.length, shown.at(-1).text, shown.at(-1).isLast], [2, "two", true], "there is one of the last message");
  drafts.step(-1);
  drafts.write("shorter");
  await turns();
  assert.deepEqual([requests.at(-1).body.text, requests.at(-1).body.draft], ["The last message", "one"]);
  await finish(requests, "1");
  assert.equal(shown.at(-1).isForAnother, false);
});

test("a message that the user has changed stays when another version is shown", () => {
  const state = new DraftState("a");
  state.add(version("one", { message: "A", from: "case" }));
  state.add(version("two", { message: "B", from: "case" }));
  Object.assign(state, { message: "C", from: "panel" });
  state.step(-1);
  assert.deepEqual([state.version.text, state.message, state.isForAnother], ["one", "C", true]);
  state.message = " A";
  state.step(1);
  assert.deepEqual([state.version.text, state.message, state.from], ["two", "B", "case"]);
  state.step(-1);
  state.remove(state.versions[1]);
  assert.deepEqual([state.version.text, state.message], ["one", "A"], "it was not the one that is shown");
});

test("versions that an earlier release kept answer the one message that it kept", () => {
  const old = version("one", { message: undefined, from: undefined });
  kept.set("deskmate.reply-draft.a", JSON.stringify({ isOpen: true, message: "A", notes: "", from: "chat", versions: [old], at: 0 }));
  const { version: read } = DraftState.read("a");
  assert.deepEqual([read.message, read.from], ["A", "chat"]);
});

test("what is typed in one draft is saved while another one is being written", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { drafts, requests, state } = page();
  drafts.open();
  await turns();
  requests[0].say("draft", { id: "1", sources: [] });
  await turns();
  drafts.use("b");
  state().notes = "She is a regular.";
  drafts.saveSoon();
  for (let part = 0; part < 4; part++) {
    context.mock.timers.tick(200);
    requests[0].say("text", { text: "word " });
    await turns();
  }
  assert.equal(DraftState.read("b").notes, "She is a regular.");
  assert.match(DraftState.read("a").version.text, /^word /);
  await finish(requests, "one");
});

test("a chat that is deleted while its draft is written keeps nothing of it, and the new chat keeps its own", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { drafts, requests, shown, state } = page({ id: null });
  state().notes = "She is a regular.";
  drafts.use("a");
  drafts.open();
  await turns();
  requests[0].say("draft", { id: "1", sources: [] });
  requests[0].say("text", { text: "It is " });
  await turns();
  drafts.use("b"); // it is deleted from the list while another one is open
  drafts.forget("a");
  drafts.use("a"); // as after an undo of the deletion
  assert.deepEqual([shown.at(-1).text, shown.at(-1).status, shown.at(-1).isOpen], [null, "", false]);
  await turns();
  assert.deepEqual([...kept.keys()], ["deskmate.reply-draft.new"]);

  drafts.open();
  await turns();
  requests[1].say("draft", { id: "2", sources: [] });
  requests[1].say("text", { text: "It was " });
  await turns();
  drafts.forget("a"); // while it is open
  drafts.use(null);
  await turns();
  context.mock.timers.tick(1000);
  assert.deepEqual([...kept.keys()], ["deskmate.reply-draft.new"]);
  assert.deepEqual([state().conversationId, state().notes], [null, "She is a regular."]);
});

test("a prompt says which size of model it needs, and that a smaller one is loaded", () => {
  const prompt = { title: "Reply", min_parameters: 1e9 };
  assert.deepEqual([135e6, 1.5e9, 14_300_000, 900].map(parametersText), ["135 million", "1.5 billion", "14.3 million", "900"]);
  assert.equal(sizeText(prompt), "Needs a model with at least 1 billion parameters.");
  assert.equal(sizeText({ min_parameters: null }), "");
  assert.match(tooSmallText(prompt, { name: "guide", num_parameters: 14e6 }), /guide is too small for the prompt “Reply”: it has 14 million/);
  for (const size of [0, 1e9]) assert.equal(tooSmallText(prompt, { name: "m", num_parameters: size }), "");
  assert.equal(tooSmallText(undefined, { name: "m", num_parameters: 1 }), "");
});

test("a command is the whole text of the box", () => {
  const commands = [{ name: "draft", title: "", description: "", run: () => undefined }];
  assert.equal(commandIn(" /Draft\n", commands), commands[0]);
  for (const text of ["/draft it", "draft", "/"]) assert.equal(commandIn(text, commands), undefined);
});

test("a review says how much of a draft was changed", () => {
  assert.equal(changesText([{ kind: "same", text: "a b" }]), "Used as the model wrote it.");
  assert.equal(changesText([{ kind: "removed", text: "a b" }, { kind: "added", text: " c" }]), "Changed before it was used: 1 word added, 2 removed.");
});

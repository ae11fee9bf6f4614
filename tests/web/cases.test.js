import "./fakes.js";
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { ApiError } from "../../app/ui/shared/api.js";
import { News, pageTitle, waitingCount } from "../../app/ui/pages/cases/attention.js";
import { CaseRows } from "../../app/ui/pages/cases/case_rows.js";
import { crossingText, eventText, sinceText } from "../../app/ui/pages/cases/event_text.js";
import { Outbox } from "../../app/ui/pages/cases/outbox.js";
import { presenceText } from "../../app/ui/pages/cases/presence.js";
import { Timeline } from "../../app/ui/pages/cases/timeline.js";
import { ago, duration, localValue, snoozeChoices } from "../../app/ui/pages/cases/times.js";
import { inAlphabet } from "../../app/ui/pages/cases/known_tags.js";
import { beginning, emptyText, hashOf, isOfView as belongs, placeOf, repeats } from "../../app/ui/pages/cases/views.js";

const ME = { id: "anna", name: "Anna" };
const BEN = { id: "ben", name: "Ben" };

/** @param {number} minute @param {object} more */
const row = (minute, more = {}) => ({ id: `c${minute}`, inbox_id: "i1", status: "open", assignee: ME, updated_at: at(minute), revision: 1, epoch: 1, waiting_since: null, tags: [], ...more });
const at = (minute) => `2026-11-26T10:${String(minute).padStart(2, "0")}:00+00:00`;
const ids = (rows) => rows.rows.map(({ id }) => id);
const list = (more = {}) => new CaseRows({ view: "mine", inbox: null, tag: null, q: "", ...more }, ME.id);

let kept;
beforeEach(() => {
  kept = new Map();
  globalThis.window = {
    sessionStorage: { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) },
  };
});

test("a row does not say the first message twice", () => {
  assert.ok(repeats("Where is my refund?", "Where is my refund?") && repeats("Where is my refund for it?", "Where is my …"));
  assert.ok(!repeats("Please answer!", "Where is my refund?"));
});

test("a case is in the view that its status and assignee say", () => {
  assert.ok(belongs("mine", row(1), "anna"));
  assert.ok(!belongs("mine", row(1, { assignee: BEN }), "anna"));
  assert.ok(!belongs("mine", row(1, { status: "snoozed" }), "anna"));
  assert.ok(belongs("unassigned", row(1, { assignee: null }), "anna"));
  assert.ok(!belongs("unassigned", row(1, { assignee: null, status: "bot" }), "anna"));
  for (const status of ["bot", "snoozed", "resolved"]) assert.ok(belongs(status, row(1, { status }), "anna") && belongs("all", row(1, { status }), "anna"));
});

test("an address names a view and a case, and a broken one names nothing", () => {
  const whole = { inbox: null, tag: null };
  assert.deepEqual(placeOf(hashOf("bot", "a/b")), { view: "bot", caseId: "a/b", ...whole });
  assert.deepEqual(placeOf("#mine"), { view: "mine", caseId: null, ...whole });
  assert.deepEqual(placeOf("#elsewhere/%"), { view: null, caseId: null, ...whole });
});

test("an address keeps the inbox and the tag, whatever their names hold", () => {
  for (const tag of ["vip", "a/b?c#d&e=f", "Rückgabe & Umtausch", "مرتجع"]) {
    assert.deepEqual(placeOf(hashOf("all", "c1", { tag })), { view: "all", caseId: "c1", inbox: null, tag });
    assert.deepEqual(placeOf(hashOf("mine", null, { inbox: "i1", tag })), { view: "mine", caseId: null, inbox: "i1", tag });
  }
  assert.equal(hashOf("mine"), "#mine");
  assert.equal(placeOf("#mine?tag=").tag, null);
});

test("a case comes into the list of a tag, and leaves it, with the tag", () => {
  const rows = list({ tag: "vip" });
  rows.replace([row(1, { tags: ["vip"] })], null);
  assert.ok(!rows.apply(row(2)));
  assert.ok(rows.apply(row(3, { tags: ["old", "vip"] })));
  assert.deepEqual(ids(rows), ["c3", "c1"]);
  assert.ok(rows.apply(row(1, { tags: [], revision: 2 })));
  assert.deepEqual(ids(rows), ["c3"]);
});

test("an empty list says what to do: the words, the tag and the inbox each hide cases", () => {
  const filter = { view: "mine", inbox: null, tag: null, q: "" };
  assert.match(emptyText({ ...filter, tag: "vip", q: "kettle" }), /No case has “kettle”/);
  assert.match(emptyText({ ...filter, tag: "vip" }), /has the tag “vip”/);
  assert.match(emptyText({ ...filter, inbox: "i1" }), /all inboxes/);
  assert.match(emptyText(filter), /You have no open case/);
});

test("a desk without cases says what leads to the first one, to each role what it can do", () => {
  assert.match(beginning("admin", 0).text, /There is no inbox yet. Create one/);
  assert.deepEqual(beginning("admin", 0).link, ["Create an inbox", "/desk#inboxes"]);
  assert.match(beginning("admin", 1).text, /as soon as a customer writes/);
  assert.deepEqual(beginning("admin", 1).link, ["Script tags and members", "/desk#inboxes"]);
  for (const role of ["agent", "viewer"]) {
    assert.match(beginning(role, 0).text, /Ask an admin/);
    assert.match(beginning(role, 1).text, /as soon as a customer writes/);
    assert.deepEqual([beginning(role, 0).link, beginning(role, 1).link], [null, null]);
  }
});

test("tags are offered once, in the order of a list", () => {
  assert.deepEqual(inAlphabet(["vip", "Äpfel", "zoll", "vip", "Apfel"]), ["Apfel", "Äpfel", "vip", "zoll"]);
});

test("a changed case goes to the top, one that fits no more goes, and an older event changes nothing", () => {
  const rows = list();
  rows.replace([row(3), row(2), row(1)], null);
  assert.ok(rows.apply(row(2, { updated_at: at(9), revision: 2 })));
  assert.deepEqual(ids(rows), ["c2", "c3", "c1"]);
  assert.ok(!rows.apply(row(2)));
  assert.ok(!rows.apply(row(3, { updated_at: at(20), revision: 0, assignee: BEN })), "an older revision");
  assert.ok(rows.apply(row(3, { updated_at: at(10), revision: 2, assignee: BEN })));
  assert.deepEqual(ids(rows), ["c2", "c1"]);
});

test("a new case is listed where it belongs, but not below what is loaded, nor in a search or another inbox", () => {
  const rows = list();
  rows.replace([row(5), row(4)], "further");
  assert.ok(rows.apply(row(6)));
  assert.ok(!rows.apply(row(1)), "it comes with its page");
  assert.deepEqual(ids(rows), ["c6", "c5", "c4"]);
  rows.append([row(4), row(1), row(0)], null);
  assert.deepEqual(ids(rows), ["c6", "c5", "c4", "c1", "c0"]);
  assert.ok(!list({ q: "kettle" }).apply(row(6)));
  assert.ok(!list({ inbox: "i2" }).apply(row(6)));
});

test("a page never takes a case back to an older state, nor lists one twice", () => {
  const rows = list();
  rows.replace([row(5)], "further");
  rows.apply(row(3, { updated_at: at(8), revision: 2, subject: "new" }));
  rows.append([row(4), row(3, { subject: "old" })], null);
  assert.deepEqual(ids(rows), ["c3", "c5", "c4"]);
  assert.equal(rows.find("c3").subject, "new");
});

test("the rows of a search stay in the server's order", () => {
  const rows = list({ q: "kettle" });
  rows.replace([row(1), row(5)], "further");
  rows.append([row(9)], null);
  assert.deepEqual(ids(rows), ["c1", "c5", "c9"]);
});

test("the next case after one that has left the view is that which took its place", () => {
  const rows = list();
  rows.replace([row(3), row(2), row(1)], null);
  assert.equal(rows.neighbour(null, 1).id, "c3");
  assert.equal(rows.neighbour("c3", 1).id, "c2");
  assert.equal(rows.neighbour("c3", -1), null);
  rows.apply(row(2, { updated_at: at(9), status: "resolved" }));
  assert.equal(rows.neighbour("c2", 1).id, "c1");
  assert.equal(rows.neighbour("c2", -1).id, "c3");
  assert.equal(rows.neighbour("unknown", 1).id, "c3");
});

test("cases below what is loaded are not kept, however many change", () => {
  const rows = list();
  rows.replace(Array.from({ length: 50 }, (_, index) => row(59 - index)), "further");
  for (let number = 0; number < 10_000; number++) rows.apply(row(0, { id: `other${number}`, updated_at: at(1) }));
  assert.equal(rows.rows.length, 50);
});

const said = (id, minute, more = {}) => ({ id, author: { kind: "contact", id: null, name: "Mia" }, internal: false, text: "Hello", status: "complete", created_at: at(minute), client_id: null, citations: [], attachments: [], ...more });
const happened = (id, minute, kind, more = {}) => ({ id, kind, reason: null, actor: { kind: "agent", ...ME }, at: at(minute), details: {}, ...more });
const keys = (timeline) => timeline.lines.map(({ key }) => key);

test("events stand between the messages, after those of the same moment, and days begin a line", () => {
  const timeline = new Timeline();
  timeline.load({
    messages: [said("1", 1), said("2", 3), said("3", 3, { created_at: "2026-11-28T10:00:00+00:00" })],
    events: [happened("a", 1, "created"), happened("b", 2, "handed_off"), happened("c", 3, "resolved"), happened("d", 3, "replied")],
  });
  assert.deepEqual(keys(timeline).map((key) => key.slice(0, 2)), ["dT", "ea", "m1", "eb", "m2", "ec", "dS", "m3"]);
});

test("times of different forms are compared as times", () => {
  const timeline = new Timeline();
  timeline.load({ messages: [said("1", 1, { created_at: "2026-11-26T10:00:00.5Z" }), said("2", 1, { created_at: "2026-11-26T11:00:00+01:00" })], events: [] });
  assert.deepEqual(keys(timeline).slice(1), ["m2", "m1"]);
  assert.equal(timeline.lastOfContact.id, "1");
});

test("text that comes in parts is added once, and a gap asks for the case again", () => {
  const timeline = new Timeline();
  timeline.addMessage(said("1", 1, { text: "Hi 🙂", status: "streaming" }));
  assert.ok(timeline.addText({ message_id: "1", offset: 4, text: " there" }));
  assert.ok(timeline.addText({ message_id: "1", offset: 3, text: "🙂 there" }), "heard before");
  assert.equal(timeline.messages.get("1").text, "Hi 🙂 there");
  assert.ok(timeline.addText({ message_id: "1", offset: 8, text: "re, Mia" }), "a part of it is new");
  assert.equal(timeline.messages.get("1").text, "Hi 🙂 there, Mia");
  assert.ok(!timeline.addText({ message_id: "1", offset: 99, text: "…" }));
  assert.ok(!timeline.addText({ message_id: "2", offset: 0, text: "Who?" }));
});

test("earlier messages stay when the latest ones are loaded again, and the customer's last one is known", () => {
  const timeline = new Timeline();
  timeline.load({ messages: [said("3", 3), said("4", 4, { author: { kind: "agent", ...ME } })], events: [], has_earlier: true });
  assert.equal(timeline.first.id, "3");
  timeline.addEarlier([said("1", 1), said("2", 2), said("3", 3, { text: "old" })]);
  timeline.load({ messages: [said("4", 4, { author: { kind: "agent", ...ME } }), said("5", 5)], events: [], has_earlier: true });
  assert.deepEqual(keys(timeline).slice(1), ["m1", "m2", "m3", "m4", "m5"]);
  assert.equal(timeline.messages.get("3").text, "Hello");
  assert.equal(timeline.lastOfContact.id, "5");
  timeline.load({ messages: [said("5", 5)], events: [], has_earlier: false });
  assert.deepEqual(keys(timeline).slice(1), ["m5"], "the others were deleted");
});

test("an answer that was on its way takes no text back, and the end of a message holds", () => {
  const timeline = new Timeline();
  timeline.addMessage(said("1", 1, { text: "Hello there", status: "streaming" }));
  timeline.load({ messages: [said("1", 1, { text: "Hel", status: "streaming" })], events: [] });
  assert.equal(timeline.messages.get("1").text, "Hello there");
  timeline.addMessage(said("1", 1, { text: "Hello", status: "stopped" }));
  timeline.addMessage(said("1", 1, { text: "Hello there, still", status: "streaming" }));
  assert.deepEqual([timeline.messages.get("1").text, timeline.messages.get("1").status], ["Hello", "stopped"]);
});

test("events are told in words", () => {
  const text = (kind, more) => eventText(happened("x", 1, kind, more));
  assert.equal(text("mailed", { details: { email: "eva@a.example" } }), "Sent by e-mail to eva@a.example");
  assert.equal(text("mail_failed", { details: { email: "eva@a.example", error: "No such user" } }), "Could not be sent by e-mail to eva@a.example: No such user");
  assert.equal(text("handed_off", { reason: "asked_for_person", actor: { kind: "contact", id: null, name: "Mia" } }), "Handed to people: asked for a person");
  assert.equal(text("handed_off", { reason: "agent_took_over" }), "Anna took over from the assistant");
  assert.equal(text("assigned", { details: { user_id: "anna", user_name: "Anna" } }), "Anna took it");
  assert.equal(text("assigned", { details: { user_id: "ben", user_name: "Ben" } }), "Anna assigned it to Ben");
  assert.equal(text("assigned", { details: { user_id: null } }), "Anna took the assignment back");
  assert.equal(text("reopened", { actor: { kind: "contact", id: null, name: "Mia" } }), "Reopened: the customer wrote");
  assert.equal(text("rated", { details: { score: 2 } }), "Rated 2 of 5");
  assert.equal(text("something_new", {}), "Anna: something new");
});

test("what a colleague has done crosses a reply, what the user, the customer or the assistant did does not", () => {
  const ben = { actor: { kind: "agent", ...BEN } };
  assert.equal(crossingText(happened("1", 1, "replied", ben), "anna"), "Ben has replied");
  assert.equal(crossingText(happened("1", 1, "resolved", ben), "anna"), "Ben resolved it");
  assert.equal(crossingText(happened("1", 1, "tags", { ...ben, details: { added: ["a"] } }), "anna"), "");
  assert.equal(crossingText(happened("1", 1, "replied"), "anna"), "");
  assert.equal(crossingText(happened("1", 1, "resolved", { actor: { kind: "contact", id: "mia", name: "Mia" } }), "anna"), "");
});

test("a refused command is told with what happened meanwhile", () => {
  const events = [happened("1", 1, "created"), happened("2", 2, "assigned", { actor: { kind: "agent", ...BEN }, details: { user_id: "ben" } }), happened("3", 3, "replied", { actor: { kind: "agent", ...BEN } })];
  assert.equal(sinceText(events, new Set(["1"])), "Meanwhile: Ben took it; Ben has replied.");
  assert.equal(sinceText(events, new Set(["1", "2", "3"])), "");
});

/** An outbox whose server is the test. */
function outbox(id = "c1") {
  const requests = [];
  const box = new Outbox(id, (mode, body) => {
    const answer = Promise.withResolvers();
    requests.push({ mode, ...body, ...answer });
    return answer.promise;
  });
  return { box, requests };
}

test("a reply and a note have texts of their own, and each is sent as what it is", async () => {
  const { box, requests } = outbox();
  box.setText("for the customer");
  box.setMode("note");
  assert.equal(box.text, "");
  box.setText("for us");
  const sending = box.submit(7);
  box.setMode("reply");
  assert.equal(await box.submit(7), null, "one at a time");
  requests[0].resolve({ message: {}, case: {} });
  await sending;
  assert.deepEqual(requests.map(({ mode, text, epoch }) => [mode, text, epoch]), [["note", "for us", 7]]);
  assert.equal(box.text, "for the customer");
  assert.equal(box.unsent.note.text, "");
});

test("a text that may have arrived is sent again under its id, also after a reload; a changed one is another", async () => {
  const { box, requests } = outbox();
  box.setText("Hello");
  const sending = box.submit(1);
  requests[0].reject(new ApiError("not reached", 0, "unreachable"));
  assert.equal(await sending, null);
  assert.equal(box.text, "Hello");
  assert.equal(box.error.reply, "not reached");
  const { box: reloaded, requests: again } = outbox();
  assert.equal(reloaded.text, "Hello");
  reloaded.submit(1);
  assert.equal(again[0].client_id, requests[0].client_id);
  again[0].reject(new ApiError("no", 500, "unknown"));
  await again[0].promise.catch(() => {});
  await null;
  await null;
  reloaded.setText("Hello!");
  reloaded.submit(1);
  assert.notEqual(again[1].client_id, again[0].client_id);
});

test("a message that arrived although its answer was lost is not kept to be sent again", async () => {
  const { box, requests } = outbox();
  box.setText("Hello");
  const sending = box.submit(1);
  requests[0].reject(new ApiError("not reached", 0, "unreachable"));
  await sending;
  assert.ok(!box.confirm([said("1", 1, { client_id: "another" }), said("2", 1)]));
  assert.ok(box.confirm([said("3", 1, { client_id: requests[0].client_id })]));
  assert.deepEqual([box.text, box.error.reply, kept.size], ["", "", 0]);
});

test("a stale case keeps the text, says why, and the next attempt carries the new epoch", async () => {
  const { box, requests } = outbox();
  box.setText("Hello");
  const sending = box.submit(1);
  requests[0].reject(new ApiError("Ben took it.", 409, "stale_case"));
  await assert.rejects(sending, /Ben took it/);
  assert.deepEqual([box.text, box.error.reply, box.sending], ["Hello", "Ben took it.", null]);
  box.submit(2);
  assert.equal(requests[1].epoch, 2);
});

test("the mode is kept for each case, and what another version has kept is no trouble", () => {
  outbox("c1").box.setMode("note");
  assert.equal(outbox("c1").box.mode, "note");
  assert.equal(outbox("c2").box.mode, "reply");
  kept.set("deskmate.case.c3", "{broken");
  kept.set("deskmate.case.c4", '{"mode":"shout","reply":{"text":5},"note":null}');
  for (const id of ["c3", "c4"]) assert.deepEqual([outbox(id).box.mode, outbox(id).box.text], ["reply", ""]);
});

test("a reply that crosses a colleague's is held once; a note is not", async () => {
  const { box, requests } = outbox();
  box.warn("Ben has replied");
  assert.equal(box.warning, "", "nothing is being written");
  box.setText("Hello");
  box.warn("Ben has replied");
  assert.equal(await box.submit(1), null);
  assert.match(box.warning, /^Ben has replied, .* Send again/);
  assert.equal(requests.length, 0);
  box.submit(1);
  assert.equal(requests.length, 1);
  requests[0].resolve({});
  const other = outbox("c2");
  other.box.setText("Hello");
  other.box.warn("Ben has replied");
  other.box.setMode("note");
  other.box.setText("for us");
  other.box.submit(1);
  assert.equal(other.requests.length, 1);
});

test("the title tells how many wait, and a new wait is told once, of this agent's and of free cases alone", () => {
  assert.equal(pageTitle(0), "Cases · Deskmate");
  assert.equal(pageTitle(3), "(3) Cases · Deskmate");
  assert.equal(pageTitle(1000), "(99+) Cases · Deskmate");
  assert.equal(waitingCount({ waiting: 2, unassigned: 9 }), 2);
  const news = new News("anna", Date.parse(at(5)));
  const waiting = (minute, more) => row(1, { waiting_since: at(minute), ...more });
  assert.ok(news.isNew(waiting(6)));
  assert.ok(!news.isNew(waiting(6)));
  assert.ok(news.isNew(waiting(7)), "the customer waits again");
  assert.ok(!news.isNew(waiting(4, { id: "old" })));
  assert.ok(!news.isNew(waiting(8, { assignee: BEN })));
  assert.ok(!news.isNew(waiting(8, { status: "bot" })));
  assert.ok(news.isNew(waiting(9, { id: "free", assignee: null })));
});

test("others at a case are named, the user is not", () => {
  const one = (name, typing) => ({ id: name, name, typing });
  assert.equal(presenceText([one("anna", true)], "anna"), "");
  assert.equal(presenceText([one("anna", false), one("Ben", true), one("Cleo", false), one("Dan", false)], "anna"), "Ben is writing; Cleo and Dan are looking at this case.");
  assert.equal(presenceText([one("A", true), one("B", true), one("C", true)], "anna"), "A, B and C are writing.");
});

test("a snooze ends in the morning, on Monday at the latest, by the clock on the wall", () => {
  const choices = (day) => Object.fromEntries(snoozeChoices(new Date(2026, 10, day, 16, 30)).map(([name, until]) => [name, localValue(until)]));
  assert.deepEqual(choices(26), { "In 1 hour": "2026-11-26T17:30", "In 4 hours": "2026-11-26T20:30", "Tomorrow morning": "2026-11-27T09:00", "Monday morning": "2026-11-30T09:00", "In 1 week": "2026-12-03T09:00" });
  assert.ok(!("Monday morning" in choices(29)), "tomorrow is Monday");
  assert.equal(choices(30)["Monday morning"], "2026-12-07T09:00");
});

test("durations and times ago are short", () => {
  const now = Date.parse(at(30));
  assert.deepEqual([at(30), at(29), "2026-11-26T07:31:00Z", "2026-11-24T10:00:00Z"].map((iso) => ago(iso, now)), ["now", "1 min", "2 h", "2 d"]);
  assert.deepEqual([null, 44.6, 600, 5400, 200_000].map(duration), ["–", "45 s", "10 min", "1.5 h", "2.3 d"]);
});

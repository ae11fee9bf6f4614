// The frame: builds the chat and binds it to the talk and to the website around it.

import { icon, make } from "../shared/dom.js";
import { errorText, WidgetApi } from "./api.js";
import { HostPage } from "./host_page.js";
import { hoursText } from "./hours.js";
import { MessageBox } from "./message_box.js";
import { authorName, MessageList, saveFile } from "./message_list.js";
import { PersonBar } from "./person_bar.js";
import { Store } from "./store.js";
import { Talk } from "./talk.js";
import { isStreaming } from "./talk_state.js";
import { language, loadTexts, t } from "./texts.js";

/** @import { HostMessage } from "./host_page.js" */
/** @import { Message } from "./types.js" */

/** A website that says nothing within this time has an older loader, or none. */
const HELLO_MS = 2000;

const inbox = location.pathname.split("/").at(-1) ?? "";
const allowed = document.querySelector('meta[name="deskmate-origins"]')?.getAttribute("content") ?? "";
const store = Store.of(inbox);

/** @type {HostMessage[]} what the website says before the chat is there */
let early = [];
/** @type {(message: HostMessage) => void} */
let hear = (message) => early.push(message);
// Before anything is awaited: the website speaks as soon as this page has loaded.
const host = new HostPage(window, allowed.split(" ").filter(Boolean), (message) => hear(message));

await loadTexts(new URLSearchParams(location.search).get("lang") ?? navigator.language);
document.documentElement.lang = language();

const api = new WidgetApi(inbox);
const visitor = { language: language(), time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC" };
const talk = new Talk(api, store, navigator.locks, visitor, () => draw());
const list = new MessageList((file) => api.attachment(file.id), { retry: (id) => void talk.outbox.retry(id), drop: (id) => talk.outbox.drop(id) });
const bar = new PersonBar({
  askForPerson: () => talk.askForPerson(),
  leaveEmail: (email) => talk.leaveEmail(email),
  rate: (score, comment) => talk.rate(score, comment),
});
const box = new MessageBox(
  store,
  (text, files) => {
    void talk.write(text, files);
    list.scrollToEnd();
  },
  (file) => api.upload(file),
);

const title = make("h1", { dir: "auto" }, t("Chat"));
const hours = make("p", { class: "dw-hours", dir: "auto" });
const notice = make("p", { class: "dw-notice", role: "status", dir: "auto" });
const announcer = make("div", { class: "dm-hidden", "aria-live": "polite" });
const save = make("button", { type: "button", class: "dm-icon-button", "aria-label": t("Download the talk as text"), title: t("Download the talk as text"), onclick: saveTranscript }, icon("save"));
const close = make("button", { type: "button", class: "dm-icon-button", "aria-label": t("Close chat"), title: t("Close chat"), hidden: !host.isThere, onclick: () => host.tell({ type: "close" }) }, icon("close"));
const main = make("main", {}, list.element, bar.element, box.element, announcer);
document.body.replaceChildren(make("header", { class: "dw-header" }, make("div", { class: "dw-title" }, title, hours), save, close), notice, main);

/** Whether the visitor sees the chat. */
let isOpen = !host.isThere;
/** @type {Set<string>} the ids of messages that were announced, or there from the beginning */
const known = new Set();
let hasBegun = false;
let unread = 0;
/** @type {number | null} the frame in which the page is drawn again */
let drawing = null;

/** Draws once for all that changes before the next frame; at once while the chat is closed, which knows no frames then. */
function draw() {
  if (!isOpen || document.visibilityState === "hidden") drawNow();
  else drawing ??= requestAnimationFrame(drawNow);
}

function drawNow() {
  if (drawing !== null) cancelAnimationFrame(drawing);
  drawing = null;
  const { state } = talk;
  const pending = talk.outbox.list();
  const isWriting = state.messages.some((message) => isStreaming(message.status)); // the message shows it itself
  if (state.inbox) {
    title.textContent = state.inbox.name;
    document.title = state.inbox.name;
    hours.textContent = hoursText(state.case ?? state.inbox);
  }
  save.hidden = state.messages.length === 0;
  notice.textContent = state.problem || (state.isOnline ? "" : t("There is no connection at the moment. Trying again …"));
  list.show(state.inbox?.greeting ?? "", state.messages, pending, state.isOnline, isWriting ? null : state.typing);
  bar.show(state);
  box.show(state.canAttach);
  noteNews(state.messages);
  if (isOpen && document.visibilityState === "visible") void talk.markRead();
}

/** Announces messages that are whole, and counts them while the chat is closed. @param {Message[]} messages */
function noteNews(messages) {
  const whole = messages.filter((message) => !isStreaming(message.status) && !known.has(message.id));
  for (const message of whole) {
    known.add(message.id);
    if (!hasBegun || message.author.kind === "contact") continue;
    if (isOpen) announcer.textContent = t("{name}: {text}", { name: authorName(message), text: message.text });
    else unread++;
  }
  hasBegun = talk.state.inbox !== null; // what another visitor's session brings is no news
  if (!isOpen && unread > 0) host.tell({ type: "unread", count: unread });
}

async function saveTranscript() {
  try {
    saveFile(await api.transcript(), `${talk.state.inbox?.name ?? "chat"}.txt`);
  } catch (error) {
    notice.textContent = errorText(error);
  }
}

/** @type {() => void} */
let start = () => {
  start = () => {};
  void talk.start();
};

hear = (message) => {
  if (message.type === "identify") {
    start = () => {};
    void talk.identify(message.token);
  } else if (message.type === "closed") isOpen = false;
  else if (message.type === "opened") {
    isOpen = true;
    unread = 0;
    host.tell({ type: "unread", count: 0 });
    drawNow();
    list.scrollToEnd();
    box.focus();
  }
  if (message.type === "hello") queueMicrotask(start); // after an identify() that waited for the frame
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented && !event.isComposing) host.tell({ type: "close" });
});
document.addEventListener("visibilitychange", () => draw());
addEventListener("online", () => talk.wake());
addEventListener("storage", (event) => talk.wake(event.key ?? ""));

early.forEach(hear);
early = [];
if (host.isThere) setTimeout(() => start(), HELLO_MS);
else {
  start();
  box.focus();
}

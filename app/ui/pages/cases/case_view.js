// The open case: its head with the commands, the line of time, the reply box and the details. Follows the case's events.

import { ApiError, errorMessage } from "../../shared/api.js";
import { announce, icon, make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { openMenu } from "../../shared/menu.js";
import { proposeArticle, showSummary } from "../chat/case_dialogs.js";
import { casePath, cases, caseWriting } from "./case_api.js";
import { showDrafts } from "./case_drafts.js";
import { askAssignee, askMerge, askSnooze } from "./case_dialogs.js";
import { isOlder } from "./case_rows.js";
import { button, problem } from "./controls.js";
import { DetailsView, STATUS_NAMES } from "./details_view.js";
import { crossingText, sinceText } from "./event_text.js";
import { Outbox } from "./outbox.js";
import { Presence, presenceText } from "./presence.js";
import { ReplyBox } from "./reply_box.js";
import { Stream } from "./streams.js";
import { SubjectView } from "./subject_view.js";
import { Timeline } from "./timeline.js";
import { TimelineView } from "./timeline_view.js";

/** @import { Viewer } from "../../shared/api_types.js" */
/** @import { CaseDetail, CaseRow, Inbox, Named, Present } from "./types.js" */

/**
 * @typedef {object} CaseHost
 * @property {Viewer} viewer
 * @property {Inbox[]} inboxes
 * @property {(row: CaseRow) => unknown} changed
 * @property {() => unknown} back  to the list
 * @property {(caseId: string) => string} hash  the address of another case
 */

const EVENTS = ["message", "delta", "case", "event", "present"];
const BOT_HINT = "The assistant answers this case. Your reply takes it over.";

export class CaseView {
  /** @type {CaseRow | null} */
  #row = null;
  /** @type {CaseRow[]} */
  #others = [];
  #timeline = new Timeline();
  #isClosed = false;
  #isRunning = false;
  #isBehind = false; // the stream was opened, and what happened before may have been missed
  #isDrawing = false;

  /** @param {string} id @param {HTMLElement} place @param {CaseHost} host */
  constructor(id, place, host) {
    this.id = id;
    this.place = place;
    this.host = host;
    this.me = host.viewer.user_id;
    this.mayWrite = host.viewer.role !== "viewer";
    this.subtitle = make("p", { class: "cs-subtitle" });
    this.subject = new SubjectView(this.subtitle, this.mayWrite ? (subject) => this.#change({ subject }) : null);
    this.assignButton = button("Assign", () => this.run("assign"));
    this.snoozeButton = button("Snooze", () => this.run("snooze"));
    this.resolveButton = button("Resolve", () => this.run("resolve"), { class: "dm-button dm-small dm-primary" });
    this.summariseButton = button("Summarise", () => this.#summarise());
    this.articleButton = button("Propose an article", () => this.#proposeArticle(), { class: "dm-button dm-small cs-article" });
    this.more = button("More", () => this.#openMore(), { "aria-haspopup": "menu", "aria-expanded": "false" });
    this.present = make("p", { class: "cs-present", role: "status" });
    this.merged = make("p", { class: "cs-merged" });
    this.trouble = make("div", { class: "cs-case-trouble" });
    this.timelineView = new TimelineView(id, this.me, () => this.#loadEarlier());
    this.outbox = new Outbox(id, (mode, body) => cases.send(id, mode, body));
    this.box = this.mayWrite ? new ReplyBox(this.outbox, { submit: () => this.#submit(), typed: () => this.presence?.typing(), draft: () => this.drafts?.open() }) : null;
    /** @type {import("../chat/reply_drafts.js").ReplyDrafts | null} */
    this.drafts = this.box ? showDrafts(id, this.box, () => this.#timeline.lastOfContact?.text ?? null) : null;
    this.details = new DetailsView({ inboxes: host.inboxes, mayChange: this.mayWrite, change: (change) => this.#change(change), hash: host.hash });
    const commands = this.mayWrite ? [this.assignButton, this.snoozeButton, this.articleButton, this.resolveButton, this.more] : [this.summariseButton];
    const head = make(
      "div",
      { class: "cs-head" },
      make("button", { type: "button", class: "dm-icon-button cs-back", "aria-label": "Back to the list", title: "Back to the list", onclick: () => host.back() }, icon("previous")),
      this.subject.element,
      make("div", { class: "dm-buttons" }, ...commands),
    );
    this.element = make("div", { class: "cs-open" }, make("div", { class: "cs-talk" }, head, this.merged, this.present, this.trouble, this.timelineView.element, this.drafts?.panel.element ?? "", this.box?.element ?? make("p", { class: "cs-read-only" }, "You can read cases. Agents and admins answer them.")), this.details.element);
    this.stream = new Stream(casePath(id, "events"), EVENTS, {
      onEvent: (name, data) => this.#onEvent(name, data),
      onOpen: () => {
        this.#isBehind = true;
      },
      onLost: () => undefined,
    });
    this.onVisibility = () => (document.visibilityState === "hidden" ? this.stream.close() : this.stream.open());
  }

  async load() {
    this.place.replaceChildren(make("p", { class: "cs-nothing", role: "status" }, "Loading …"));
    try {
      this.#show(await cases.get(this.id));
    } catch (error) {
      if (!this.#isClosed) this.place.replaceChildren(make("div", { class: "cs-nothing" }, problem(error), button("Back to the list", () => this.host.back())));
      return;
    }
    if (this.#isClosed) return;
    this.place.replaceChildren(this.element);
    this.timelineView.toEnd();
    this.presence = new Presence((presence) => cases.presence(this.id, presence));
    document.addEventListener("visibilitychange", this.onVisibility);
    this.onVisibility();
  }

  close() {
    this.#isClosed = true;
    this.stream.close();
    this.presence?.close();
    document.removeEventListener("visibilitychange", this.onVisibility);
  }

  /** The case has changed, as the list has heard. @param {CaseRow} row */
  update(row) {
    if (row.id !== this.id || this.#row === null || isOlder(row, this.#row)) return;
    this.#row = row;
    this.#showHead();
    this.details.update(row);
  }

  /** Runs a command by its name; returns whether it is one of the case. @param {string} command */
  run(command) {
    const row = this.#row;
    if (row === null || !this.mayWrite || this.#isClosed || row.merged_into) return false;
    if (command === "reply" || command === "note") this.box?.choose(command);
    else if (command === "assign") askAssignee(row, this.#members, { id: this.me, name: this.host.viewer.name ?? "Me" }, (user) => this.#assign(user));
    else if (command === "snooze") {
      if (row.status === "resolved") return false;
      askSnooze((until) => this.#do(() => cases.snooze(this.#current, { until: until.toISOString() }), `Snoozed until ${moment(until.toISOString())}.`));
    } else if (command === "resolve") this.#toggleResolved();
    else return false;
    return true;
  }

  get #current() {
    return /** @type {CaseRow} */ (this.#row);
  }

  /** @returns {Named[]} */
  get #members() {
    return this.host.inboxes.find(({ id }) => id === this.#row?.inbox_id)?.members ?? [];
  }

  /** @param {CaseDetail} detail */
  #show(detail) {
    if (this.#isClosed) return;
    if (this.#row === null || !isOlder(detail.case, this.#row)) this.#row = detail.case;
    this.#others = detail.other_cases;
    this.#timeline.load(detail);
    this.outbox.confirm(detail.messages);
    this.#showHead();
    this.#showPresent(detail.present);
    this.details.show({ ...detail, case: this.#current });
    this.timelineView.earlier.hidden = !detail.has_earlier;
    this.timelineView.show(this.#timeline.lines);
    this.drafts?.messagesChanged();
    this.host.changed(this.#current);
  }

  // Resolves to whether they were loaded.
  #loadEarlier() {
    return this.#tell(async () => {
      const { messages, has_earlier: hasEarlier } = await cases.get(this.id, this.#timeline.first?.id ?? null);
      this.#timeline.addEarlier(messages);
      this.timelineView.earlier.hidden = !hasEarlier;
      this.timelineView.show(this.#timeline.lines);
    });
  }

  async #reload() {
    try {
      this.#show(await cases.get(this.id));
    } catch (error) {
      if (!this.#isClosed) this.trouble.replaceChildren(problem(error));
    }
  }

  // Loads the case as it is now, and resolves to what happened since it was loaded.
  async #reloadAfterConflict() {
    const known = new Set(this.#timeline.events.keys());
    await this.#reload();
    return sinceText([...this.#timeline.events.values()], known) || "The case is shown as it is now.";
  }

  #showHead() {
    const { contact, subject, status, assignee, snoozed_until: until, merged_into: into } = this.#current;
    this.subject.show(subject, contact.name || "Visitor", into === null);
    const state = status === "snoozed" && until ? `Snoozed until ${moment(until)}` : STATUS_NAMES[status];
    const assigned = assignee ? ["Assigned to ", make("bdi", {}, assignee.id === this.me ? "you" : assignee.name)] : status === "bot" ? [] : ["Not assigned"];
    this.subtitle.replaceChildren(make("bdi", {}, contact.name || "Visitor"), ` · ${state}`, ...(assigned.length ? [" · ", ...assigned] : []));
    this.merged.replaceChildren(...(into ? ["This case was merged into ", make("a", { href: this.host.hash(into) }, "another one"), ", where the conversation goes on."] : []));
    if (this.box) this.box.element.hidden = into !== null;
    for (const each of [this.assignButton, this.resolveButton, this.more, this.summariseButton]) each.hidden = into !== null;
    this.resolveButton.textContent = status === "resolved" ? "Reopen" : "Resolve";
    this.snoozeButton.hidden = status === "resolved";
    this.articleButton.hidden = status !== "resolved" || into !== null;
    this.box?.show({ hint: status === "bot" ? BOT_HINT : status === "resolved" ? "This case is resolved, and a reply leaves it so." : "" });
  }

  /** @param {Present[]} present */
  #showPresent(present) {
    const text = presenceText(present, this.me);
    if (this.present.textContent !== text) this.present.textContent = text;
    this.present.classList.toggle("cs-collision", present.some(({ id, typing }) => typing && id !== this.me));
  }

  /** @param {string} name @param {any} data */
  #onEvent(name, data) {
    if (this.#isClosed) return;
    if (name === "present") this.#showPresent(data.present ?? data);
    else if (name === "case") {
      this.host.changed(data);
      if (this.#isBehind) this.#reload(); // it comes first in a stream: from now on nothing is missed
      this.#isBehind = false;
    }
    else if (name === "event") this.#onCaseEvent(data);
    else if (name === "message") this.#onMessage(data);
    else if (!this.#timeline.addText(data)) this.#reload();
    // A text comes in many parts: they are drawn together.
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.timelineView.show(this.#timeline.lines);
    });
  }

  /** @param {import("./types.js").CaseMessage} message */
  #onMessage(message) {
    const isKnown = this.#timeline.messages.has(message.id);
    this.#timeline.addMessage(message);
    this.outbox.confirm([message]);
    const { author } = message;
    if (!isKnown && author.kind === "contact") announce(`${author.name || "The customer"}: ${message.text}`);
    this.box?.show();
    this.drafts?.messagesChanged();
  }

  /** @param {import("./types.js").CaseEvent} event */
  #onCaseEvent(event) {
    const crossing = this.#timeline.events.has(event.id) ? "" : crossingText(event, this.me);
    this.#timeline.addEvent(event);
    if (crossing === "") return;
    this.outbox.warn(crossing);
    this.box?.show();
  }

  async #submit() {
    const row = this.#row;
    if (row === null || !this.box) return;
    const { mode } = this.outbox;
    const sending = this.outbox.submit(row.epoch);
    this.box.show();
    try {
      const sent = await sending;
      if (sent) {
        this.presence?.stopped();
        this.#timeline.addMessage(sent.message);
        this.timelineView.show(this.#timeline.lines);
        this.timelineView.toEnd();
        this.host.changed(sent.case);
        announce(mode === "note" ? "The note was added." : "The reply was sent.");
      }
    } catch {
      // The case has changed: the box says what happened, and the case is shown as it is now.
      this.outbox.error[mode] += ` ${await this.#reloadAfterConflict()}`;
    }
    this.box.show();
  }

  /** @param {Named | null} user */
  #assign(user) {
    const said = user === null ? "The case is not assigned any more." : user.id === this.me ? "You took the case." : `Assigned to ${user.name}.`;
    return this.#do(() => cases.assign(this.#current, { user_id: user?.id ?? null }), said);
  }

  #toggleResolved() {
    if (this.#current.status === "resolved") this.#reopen("Reopened.");
    else this.#tell(() => this.#do(() => cases.resolve(this.#current), "Resolved."));
  }

  /** @param {string} said */
  #reopen(said) {
    this.#tell(() => this.#do(() => cases.reopen(this.#current), said));
  }

  /** Runs a command that has no dialog: its error stands above the talk. Resolves to whether it worked. @param {() => Promise<unknown>} work */
  async #tell(work) {
    this.trouble.replaceChildren();
    try {
      await work();
      return true;
    } catch (error) {
      this.trouble.replaceChildren(problem(error));
      return false;
    }
  }

  get #written() {
    const { id, subject, contact } = this.#current;
    return { id, title: subject || contact.name || "Visitor", routes: caseWriting };
  }

  #summarise() {
    showSummary(this.#written, (messageId) => this.#lookAt(messageId));
  }

  #proposeArticle() {
    const inbox = this.host.inboxes.find(({ id }) => id === this.#current.inbox_id);
    proposeArticle(this.#written, { from: "this case, without its internal notes,", likely: inbox?.collections });
  }

  // Shows a message, with the earlier ones if it is among them.
  /** @param {string} messageId */
  async #lookAt(messageId) {
    while (!this.#isClosed && !this.timelineView.lookAt(messageId) && !this.timelineView.earlier.hidden) {
      if (!(await this.#loadEarlier())) return;
    }
  }

  /** @param {object} change */
  #change(change) {
    return this.#do(() => cases.change(this.#current, change), "Saved.");
  }

  /**
   * Runs one command at a time. Where another user was faster, the case is loaded as it is now, and the error says so.
   * @param {() => Promise<any>} command @param {string} said
   */
  async #do(command, said) {
    if (this.#isRunning) return;
    this.#isRunning = true;
    try {
      const answer = await command();
      if (answer?.case ?? answer?.id) this.host.changed(answer.case ?? answer);
      announce(said);
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) {
        throw new ApiError(`${errorMessage(error)} ${await this.#reloadAfterConflict()}`, error.status, error.code);
      }
      throw error;
    } finally {
      this.#isRunning = false;
    }
  }

  #openMore() {
    const merge = () =>
      askMerge(this.#current, this.#others, (into) =>
        this.#do(async () => {
          const answer = await cases.merge(this.#current, { into: into.id });
          location.hash = this.host.hash(into.id);
          return answer;
        }, "Merged."),
      );
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(`${location.origin}/desk/cases#all/${encodeURIComponent(this.id)}`);
        announce("The link was copied.");
      } catch {
        this.trouble.replaceChildren(make("p", { class: "dm-notice" }, `${location.origin}/desk/cases#all/${encodeURIComponent(this.id)}`));
      }
    };
    const wake = { name: "End the snooze", iconName: "again", action: () => this.#reopen("Open again.") };
    const summarise = { name: "Summarise", iconName: "canned", action: () => this.#summarise() };
    const article = { name: "Propose an article", iconName: "desk", action: () => this.#proposeArticle() };
    const isArticleHere = this.#current.status === "resolved" && !this.articleButton.checkVisibility(); // on a phone
    openMenu(this.more, "More", [...(this.#current.status === "snoozed" ? [wake] : []), summarise, ...(isArticleHere ? [article] : []), { name: "Merge into another case", iconName: "branch", action: merge }, { name: "Copy a link", iconName: "copy", action: copy }]);
  }
}

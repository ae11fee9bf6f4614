// The dialogs of a case: assign, snooze, merge. Each runs one command of the case.

import { InputError } from "../../shared/input_error.js";
import { make } from "../../shared/dom.js";
import { button, field, openDialog } from "./controls.js";
import { localValue, momentName, snoozeChoices } from "./times.js";

/** @import { CaseRow, Named } from "./types.js" */

/** @param {string} name @param {() => unknown} onclick @param {Record<string, unknown>} [attributes] */
const choice = (name, onclick, attributes = {}) => make("button", { type: "button", class: "dm-option", onclick, ...attributes }, make("span", { dir: "auto" }, name));

/**
 * @param {CaseRow} row
 * @param {Named[]} members  of the case's inbox
 * @param {Named} me
 * @param {(user: Named | null) => Promise<unknown>} assign
 */
export function askAssignee(row, members, me, assign) {
  openDialog("Assign the case", ({ work }) => {
    const others = members.filter(({ id }) => id !== me.id);
    /** @param {string} name @param {Named | null} user @param {boolean} isFirst */
    const entry = (name, user, isFirst = false) =>
      choice(name, () => work(() => assign(user)), { "aria-current": (row.assignee?.id ?? null) === (user?.id ?? null) ? "true" : null, "data-first": isFirst });
    return { body: [make("div", { class: "cs-choices" }, entry("Me", me, true), ...others.map((user) => entry(user.name, user)), entry("Unassigned", null))] };
  });
}

/** @param {(until: Date) => Promise<unknown>} snooze */
export function askSnooze(snooze) {
  openDialog("Snooze the case", ({ work }) => {
    const choices = snoozeChoices().map(([name, until], index) =>
      make("button", { type: "button", class: "dm-option", "data-first": index === 0, onclick: () => work(() => snooze(until)) }, make("span", {}, name), make("span", {}, momentName(until))),
    );
    const own = make("input", { type: "datetime-local" });
    own.min = localValue(new Date());
    const set = () =>
      work(async () => {
        const until = new Date(own.value);
        if (Number.isNaN(until.getTime())) throw new InputError("Choose a day and a time first.");
        if (until <= new Date()) throw new InputError("Choose a time that is still to come.");
        await snooze(until);
      });
    const go = make("button", { type: "button", class: "dm-button", onclick: set }, "Snooze until then");
    return {
      body: [make("p", {}, "The case leaves your list until then. It comes back at once if the customer writes."), make("div", { class: "cs-choices" }, ...choices), make("div", { class: "dm-stack cs-until" }, field("Or until", own), go)],
    };
  });
}

/**
 * @param {CaseRow} row
 * @param {CaseRow[]} others  of the same contact
 * @param {(into: CaseRow) => Promise<unknown>} merge
 */
export function askMerge(row, others, merge) {
  const targets = others.filter(({ status, inbox_id: inbox }) => status !== "resolved" && inbox === row.inbox_id);
  openDialog("Merge the case", ({ work }) => {
    if (targets.length === 0) return { body: [make("p", {}, "This contact has no other open case in this inbox to merge it into.")] };
    const into = make("select", {}, ...targets.map((other) => make("option", { value: other.id }, other.subject || other.preview || "(no subject)")));
    const go = button("Merge", () =>
      work(async () => {
        const target = targets.find(({ id }) => id === into.value);
        if (target) await merge(target);
      }), { class: "dm-button dm-primary" });
    return { body: [make("p", {}, "The messages and notes of this case go into the other one, and this case is closed. It can’t be undone."), field("Merge into", into)], buttons: [go] };
  });
}

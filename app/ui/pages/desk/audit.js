// The audit log: who did what, and when. It holds nothing that users wrote.

import { query, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { actionText, detailsText, targetText } from "./audit_text.js";
import { button, DayRange, field, latest } from "./controls.js";
import { zone } from "./days.js";
import { problem, register } from "./desk.js";
import { stackedRow, stackedTable } from "./stacked_table.js";

/** @import { Actions, AuditEntry, AuditEntryPage } from "../../shared/api_types.js" */

const PAGE = 50;
const COLUMNS = ["Time", "User", "Action", "Target", "Details"];

/** @param {HTMLElement} place */
async function show(place) {
  const body = make("tbody");
  const more = button("Show more", () => load(true), { hidden: true });
  const runLatest = latest();
  /** @type {string | null} */
  let cursor = null;
  /** @type {Actions} */
  const { actions } = await request("GET", "/api/desk/audit/actions");
  const action = make("select", {}, make("option", { value: "" }, "All actions"), ...actions.map((name) => make("option", { value: name }, actionText(name))));
  const person = make("input", { type: "search", maxlength: "200", placeholder: "Name" });
  const range = new DayRange(() => load());
  const download = make("a", { class: "dm-button", download: "" }, "Download as CSV");
  const trouble = make("div");
  const note = make("p", { class: "dk-empty", hidden: true }, "No matching entries in this date range.");
  action.addEventListener("change", () => load());
  person.addEventListener("change", () => load());
  range.element.append(field("Action", action), field("User", person), download);

  /** @param {AuditEntry} entry */
  const row = (entry) =>
    stackedRow(
      COLUMNS,
      {},
      make("td", {}, moment(entry.at)),
      make("td", { dir: "auto" }, entry.actor ?? "(not signed in)"),
      make("td", {}, actionText(entry.action)),
      make("td", { dir: "auto" }, targetText(entry)),
      make("td", {}, detailsText(entry)),
    );

  function load(further = false) {
    const filters = { ...range.value, zone, action: action.value || null, actor: person.value.trim() || null };
    download.href = `/api/desk/audit/csv?${query(filters)}`;
    place.setAttribute("aria-busy", "true");
    more.disabled = true; // its cursor belongs to the previous filters
    return runLatest(
      () => /** @type {Promise<AuditEntryPage>} */ (request("GET", `/api/desk/audit?${query({ ...filters, limit: PAGE, cursor: further ? cursor : null })}`)),
      ({ items, next_cursor: next }) => {
        const rows = items.map(row);
        trouble.replaceChildren();
        if (further) body.append(...rows);
        else body.replaceChildren(...rows);
        cursor = next;
        more.hidden = next === null;
        more.disabled = false;
        note.hidden = body.children.length > 0;
        place.removeAttribute("aria-busy");
      },
      (error) => {
        trouble.replaceChildren(problem(error));
        more.hidden = true;
        place.removeAttribute("aria-busy");
      },
    );
  }
  place.append(
    make("p", { class: "dk-lead" }, "Who did what, and when. Nothing that users write is recorded here."),
    range.element,
    stackedTable("Audit entries", COLUMNS, body),
    note,
    trouble,
    more,
  );
  await load();
}

register({ id: "audit", title: "Audit", roles: ["admin"], show });

// Figures of cases in a date range: totals, plots and tables by inbox, agent, day and hour.

import { query, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { compact, count, percent, plural } from "../../shared/formats.js";
import { cases } from "../cases/case_api.js";
import { HAND_OFF_REASONS } from "../cases/event_text.js";
import { duration } from "../cases/times.js";
import { DayRange, field, latest } from "./controls.js";
import { zone } from "./days.js";
import { problem, register } from "./desk.js";
import { DURATION_STEPS, WHOLE_STEPS } from "./plot_scales.js";
import { Plots } from "./plots.js";

/** @import { Viewer } from "../../shared/api_types.js" */
/** @import { CaseFigures, CaseReport } from "../cases/types.js" */
/** @import { PlotSpec } from "./plots.js" */

/** @type {PlotSpec[]} */
const PLOTS = [
  ["Cases", compact, true, [["Opened", "cases", "--dm-chart-1"], ["Handed to people", "handed_off", "--dm-chart-2"]], WHOLE_STEPS],
  ["Resolved", compact, true, [["All", "resolved", "--dm-chart-1"], ["By the assistant alone", "resolved_by_bot", "--dm-chart-2"]], WHOLE_STEPS],
  ["First response", duration, false, [["90th percentile", "first_reply_s_p90", "--dm-chart-2"], ["Median", "first_reply_s_p50", "--dm-chart-1"]], DURATION_STEPS],
  ["Time to resolution", duration, false, [["Median", "resolution_s_p50", "--dm-chart-1"]], DURATION_STEPS],
  ["Satisfaction, 1 to 5", (value) => value.toFixed(1), false, [["Mean", "satisfaction", "--dm-chart-1"]], WHOLE_STEPS],
];

/** @param {number | null} score */
const scoreText = (score) => (score === null ? "–" : score.toFixed(1));

/** @type {[name: string, cell: (figures: CaseFigures) => string][]} */
const COLUMNS = [
  ["Opened", (each) => count(each.cases)],
  ["Handed to people", (each) => count(each.handed_off)],
  ["Replies", (each) => count(each.replies)],
  ["Resolved", (each) => count(each.resolved)],
  ["By the assistant alone", (each) => count(each.resolved_by_bot)],
  ["First response, median", (each) => duration(each.first_reply_s_p50)],
  ["First response, 90th percentile", (each) => duration(each.first_reply_s_p90)],
  ["Waiting, median", (each) => duration(each.waiting_s_p50)],
  ["Resolution, median", (each) => duration(each.resolution_s_p50)],
  ["Satisfaction", (each) => scoreText(each.satisfaction)],
  ["Ratings", (each) => count(each.ratings)],
];

/** @param {CaseFigures} total */
function tiles(total) {
  /** @param {string} name @param {string} value @param {string} note */
  const tile = (name, value, note) => make("div", { class: "dm-card dk-tile" }, make("dt", {}, name), make("dd", {}, make("strong", {}, value), make("span", {}, note)));
  return make(
    "dl",
    { class: "dk-tiles" },
    tile("Cases", compact(total.cases), `${count(total.handed_off)} handed to people`),
    tile("Resolved", compact(total.resolved), `${count(total.resolved_by_bot)} by the assistant alone`),
    tile("Deflection", percent(total.resolved_by_bot, total.resolved), "of the resolved, without a person’s reply"),
    tile("First response", duration(total.first_reply_s_p50), total.first_reply_s_p90 === null ? "median" : `median; 90 % within ${duration(total.first_reply_s_p90)}`),
    tile("Waiting", duration(total.waiting_s_p50), "median, for a person"),
    tile("Resolution", duration(total.resolution_s_p50), "median"),
    tile("Satisfaction", scoreText(total.satisfaction), `of 5, ${plural(total.ratings, "rating")}`),
  );
}

/** @param {string} title @param {string} first @param {CaseFigures[]} rows */
function table(title, first, rows) {
  /** @param {CaseFigures} each */
  const row = (each) => make("tr", {}, make("th", { scope: "row", dir: "auto" }, each.name), ...COLUMNS.map(([, cell]) => make("td", {}, cell(each))));
  return [
    make("h2", {}, title),
    make(
      "div",
      { class: "dk-table dk-figures", tabindex: "0", role: "region", "aria-label": title },
      make("table", {}, make("thead", {}, make("tr", {}, ...[first, ...COLUMNS.map(([name]) => name)].map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows.map(row))),
    ),
  ];
}

/** @param {Record<string, number>} reasons */
function reasonTable(reasons) {
  const rows = Object.entries(reasons).sort(([, a], [, b]) => b - a);
  const total = rows.reduce((sum, [, number]) => sum + number, 0);
  if (rows.length === 0) return [];
  return [
    make("h2", {}, "Why cases were handed to people"),
    make(
      "div",
      { class: "dk-table dk-figures", tabindex: "0", role: "region", "aria-label": "Why cases were handed to people" },
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...["Reason", "Cases", "Share"].map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, ...rows.map(([reason, number]) => make("tr", {}, make("th", { scope: "row" }, HAND_OFF_REASONS[reason] ?? reason), make("td", {}, count(number)), make("td", {}, percent(number, total))))),
      ),
    ),
    make("p", { class: "dm-hint" }, "The questions that the sources do not answer are listed under ", make("a", { href: "#gaps" }, "Gaps"), "."),
  ];
}

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  if (viewer.name === null) {
    place.append(make("p", { class: "dk-lead" }, "Cases need accounts: this desk has a single user. Set APP_ACCOUNTS=true to turn them on."));
    return undefined;
  }
  const shown = make("div");
  const download = make("a", { class: "dm-button", download: "" }, "Download as CSV");
  const { inboxes } = await cases.inboxes();
  if (inboxes.length === 0) {
    const isOfAdmin = viewer.role === "admin";
    const next = isOfAdmin ? ["Create one under ", make("a", { href: "#inboxes" }, "Inboxes"), "."] : ["Ask an admin to make you a member of one."];
    place.append(make("p", { class: "dk-lead" }, isOfAdmin ? "There is no inbox yet, so there are no cases to count. " : "You are no member of an inbox yet, so you see no figures. ", ...next));
    return undefined;
  }
  const inbox = make("select", {}, make("option", { value: "" }, "All inboxes"), ...inboxes.map(({ id, name }) => make("option", { value: id }, name)));
  const plots = new Plots(PLOTS);
  const runLatest = latest();
  const load = () => {
    const { first, last } = range.value;
    const parameters = query({ from: first, to: last, zone, inbox: inbox.value || null });
    download.href = `/api/cases/figures/csv?${parameters}`;
    place.setAttribute("aria-busy", "true");
    return runLatest(
      () => /** @type {Promise<CaseReport>} */ (request("GET", `/api/cases/figures?${parameters}`)),
      ({ total, days, agents, inboxes: each, hours, reasons }) => {
        const isQuiet = total.cases + total.handed_off + total.replies + total.resolved + total.ratings === 0;
        shown.replaceChildren(
          ...(isQuiet ? [make("p", { class: "dm-notice" }, "Nothing happened in these days: no case was opened, answered or resolved. Choose other days, or another inbox.")] : []),
          tiles(total),
          plots.element,
          ...reasonTable(reasons),
          ...table("By inbox", "Inbox", each),
          ...table("By agent", "Agent", agents),
          ...table("By day", "Day", days.toReversed()),
          ...table("By hour of the day", "Hour", hours.map((hour) => ({ ...hour, name: `${hour.name}:00` }))),
        );
        plots.show(days);
        place.removeAttribute("aria-busy");
      },
      (error) => {
        shown.replaceChildren(problem(error));
        place.removeAttribute("aria-busy");
      },
    );
  };
  const range = new DayRange(load);
  inbox.addEventListener("change", load);
  range.element.append(field("Inbox", inbox), download);
  place.append(range.element, shown, make("p", { class: "dm-hint" }, `Days and hours are in the time zone ${zone}. All figures are computed from the events of the cases.`));
  await load();
  return () => plots.close();
}

register({ id: "case-figures", title: "Case figures", roles: ["admin", "viewer"], show });

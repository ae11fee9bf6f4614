// Usage statistics of a date range: totals, plots and a table by day.

import { query, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { compact, count, percent, rate, seconds } from "../../shared/formats.js";
import { DayRange, latest } from "./controls.js";
import { zone } from "./days.js";
import { problem, register } from "./desk.js";
import { WHOLE_STEPS } from "./plot_scales.js";
import { Plots } from "./plots.js";

/** @import { AccountUsage, Usage, UsageReport } from "../../shared/api_types.js" */
/** @import { PlotSpec } from "./plots.js" */

/** @type {PlotSpec[]} */
const PLOTS = [
  ["Messages", compact, true, [["Messages", "messages", "--dm-chart-1"], ["Conversations", "conversations", "--dm-chart-2"]], WHOLE_STEPS],
  ["Tokens", compact, true, [["Prompt", "prompt_tokens", "--dm-chart-2"], ["Completion", "completion_tokens", "--dm-chart-1"]], WHOLE_STEPS],
  ["Time to first token", seconds, false, [["95th percentile", "ttft_p95_ms", "--dm-chart-2"], ["Median", "ttft_p50_ms", "--dm-chart-1"]], WHOLE_STEPS],
  ["Tokens per second", rate, false, [["Median", "tokens_per_second_p50", "--dm-chart-1"]]],
  ["Users", compact, true, [["Users", "users", "--dm-chart-1"]], WHOLE_STEPS],
  ["Ratings", compact, true, [["Liked", "thumbs_up", "--dm-chart-1"], ["Disliked", "thumbs_down", "--dm-chart-3"]], WHOLE_STEPS],
];

/** @type {[name: string, cell: (day: Usage) => string][]} */
const COLUMNS = [
  ["Day", (day) => day.name],
  ["Conversations", (day) => count(day.conversations)],
  ["Messages", (day) => count(day.messages)],
  ["Replies", (day) => count(day.replies)],
  ["Failed", (day) => count(day.failed)],
  ["Users", (day) => count(day.users)],
  ["Prompt tokens", (day) => count(day.prompt_tokens)],
  ["Completion tokens", (day) => count(day.completion_tokens)],
  ["First token, median", (day) => seconds(day.ttft_p50_ms)],
  ["First token, 95th percentile", (day) => seconds(day.ttft_p95_ms)],
  ["Tokens/s, median", (day) => rate(day.tokens_per_second_p50)],
  ["Liked", (day) => count(day.thumbs_up)],
  ["Disliked", (day) => count(day.thumbs_down)],
];

/** @param {Usage} total */
function tiles(total) {
  const rated = total.thumbs_up + total.thumbs_down;
  /** @param {string} name @param {string} value @param {string} note */
  const tile = (name, value, note) =>
    make("div", { class: "dm-card dk-tile" }, make("dt", {}, name), make("dd", {}, make("strong", {}, value), make("span", {}, note)));
  return make(
    "dl",
    { class: "dk-tiles" },
    tile("Conversations", compact(total.conversations), `${compact(total.messages)} messages`),
    tile("Replies", compact(total.replies), `${count(total.failed)} failed or interrupted`),
    tile("Users", compact(total.users), "who got a reply"),
    tile("Completion tokens", compact(total.completion_tokens), `${compact(total.prompt_tokens)} prompt tokens, ${percent(total.cached_prompt_tokens, total.prompt_tokens)} cached`),
    tile("Time to first token", seconds(total.ttft_p50_ms), total.ttft_p95_ms === null ? "median" : `median; 95 % within ${seconds(total.ttft_p95_ms)}`),
    tile("Tokens/s", rate(total.tokens_per_second_p50), "median of the replies"),
    tile("Liked", percent(total.thumbs_up, rated), `${count(total.thumbs_up)} up, ${count(total.thumbs_down)} down`),
  );
}

/** @param {Usage[]} days */
function table(days) {
  /** @param {Usage} day */
  const row = (day) =>
    make("tr", {}, ...COLUMNS.map(([, cell], index) => make(index ? "td" : "th", index ? {} : { scope: "row" }, cell(day))));
  return make(
    "div",
    { class: "dk-table dk-figures", tabindex: "0", role: "region", "aria-label": "Day by day" },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...COLUMNS.map(([name]) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...days.toReversed().map(row)),
    ),
  );
}

/** @type {[name: string, cell: (account: AccountUsage) => string][]} */
const ACCOUNT_COLUMNS = [
  ["Kind", ({ kind }) => (kind === "inbox" ? "Inbox: the assistant" : "User")],
  ["Replies", (each) => count(each.replies)],
  ["Failed", (each) => count(each.failed)],
  ["Prompt tokens", (each) => count(each.prompt_tokens)],
  ["Of these cached", (each) => count(each.cached_prompt_tokens)],
  ["Completion tokens", (each) => count(each.completion_tokens)],
];

/** @param {AccountUsage[]} accounts */
function accountTable(accounts) {
  if (accounts.length === 0) return [];
  return [
    make("h2", {}, "By user and inbox"),
    make(
      "div",
      { class: "dk-table dk-figures", tabindex: "0", role: "region", "aria-label": "By user and inbox" },
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...["Name", ...ACCOUNT_COLUMNS.map(([name]) => name)].map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, ...accounts.map((account) => make("tr", {}, make("th", { scope: "row", dir: "auto" }, account.name), ...ACCOUNT_COLUMNS.map(([, cell]) => make("td", {}, cell(account)))))),
      ),
    ),
  ];
}

/** @param {HTMLElement} place */
function show(place) {
  const shown = make("div");
  const download = make("a", { class: "dm-button", download: "" }, "Download as CSV");
  const plots = new Plots(PLOTS);
  const runLatest = latest();
  /** @param {{first: string, last: string}} days */
  const load = (days) => {
    const parameters = query({ ...days, zone });
    download.href = `/api/desk/usage/csv?${parameters}`;
    place.setAttribute("aria-busy", "true");
    return runLatest(
      () => /** @type {Promise<UsageReport>} */ (request("GET", `/api/desk/usage?${parameters}`)),
      ({ total, days: each, accounts }) => {
        shown.replaceChildren(tiles(total), plots.element, ...accountTable(accounts), make("h2", {}, "Day by day"), table(each));
        plots.show(each);
        place.removeAttribute("aria-busy");
      },
      (error) => {
        shown.replaceChildren(problem(error));
        place.removeAttribute("aria-busy");
      },
    );
  };
  const range = new DayRange(load);
  range.element.append(download);
  place.append(
    range.element,
    shown,
    make(
      "p",
      { class: "dm-hint" },
      `Days are in the time zone ${zone}. A case is a conversation of its inbox, and the assistant’s replies in it are the inbox’s. Deleted content, drafts of replies, temporary chats and /v1 requests are not counted (the metrics include all but the first).`,
    ),
  );
  return load(range.value).then(() => () => plots.close());
}

register({ id: "usage", title: "Usage", roles: ["admin", "viewer"], show });

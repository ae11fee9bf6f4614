// Usage statistics of a date range: totals, plots and a table by day.

import { query, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { compact, count, percent, rate, seconds } from "../../shared/formats.js";
import { DayRange, latest } from "./controls.js";
import { zone } from "./days.js";
import { problem, register } from "./desk.js";
import { Plots } from "./plots.js";

/** @import { Usage, UsageReport } from "../../shared/api_types.js" */

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
    tile("Time to first token", seconds(total.ttft_p50_ms), `median; 95 % within ${seconds(total.ttft_p95_ms)}`),
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
    { class: "dk-table", tabindex: "0", role: "region", "aria-label": "Day by day" },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...COLUMNS.map(([name]) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...days.toReversed().map(row)),
    ),
  );
}

/** @param {HTMLElement} place */
function show(place) {
  const shown = make("div");
  const download = make("a", { class: "dm-button", download: "" }, "Download as CSV");
  const plots = new Plots();
  const runLatest = latest();
  /** @param {{first: string, last: string}} days */
  const load = (days) => {
    const parameters = query({ ...days, zone });
    download.href = `/api/desk/usage/csv?${parameters}`;
    place.setAttribute("aria-busy", "true");
    return runLatest(
      () => /** @type {Promise<UsageReport>} */ (request("GET", `/api/desk/usage?${parameters}`)),
      ({ total, days: each }) => {
        shown.replaceChildren(tiles(total), plots.element, make("h2", {}, "Day by day"), table(each));
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
      `Days are in the time zone ${zone}. Deleted content, temporary chats and /v1 requests are not counted (the metrics include the last two).`,
    ),
  );
  return load(range.value).then(() => () => plots.close());
}

register({ id: "usage", title: "Usage", roles: ["admin", "viewer"], show });

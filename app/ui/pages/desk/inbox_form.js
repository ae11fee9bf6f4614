// The form of an inbox's settings.

import { InputError } from "../../shared/input_error.js";
import { make, uniqueId } from "../../shared/dom.js";
import { button, check, field } from "./controls.js";
import { DAYS, endInField, endOfField, hoursProblem, inOrder, OFFICE_HOURS, originsOf } from "./inbox_text.js";

/** @import { CollectionView } from "../../shared/api_types.js" */
/** @import { Hours, Inbox } from "../cases/types.js" */

/** Opening hours: a line for each span. @param {Hours[]} given */
function hoursFields(given) {
  const list = make("ul", { class: "dk-hours", "aria-label": "Opening hours" });
  const always = make("p", { class: "dm-hint" }, "Without hours the inbox is always open.");
  /** @param {Hours} hours */
  const line = ({ day, from, to }) => {
    const days = make("select", { class: "dm-input", "aria-label": "Day" }, ...DAYS.map((name, index) => make("option", { value: index, selected: index === day }, name)));
    const start = make("input", { class: "dm-input", type: "time", value: from, "aria-label": "From" });
    const end = make("input", { class: "dm-input", type: "time", value: endInField(to), "aria-label": "To" });
    const remove = button("Remove", () => {
      item.remove();
      show();
      add.focus();
    }, { kind: "dm-small", "aria-label": "Remove these hours" });
    const item = make("li", {}, days, start, make("span", { "aria-hidden": "true" }, "–"), end, remove);
    return item;
  };
  const show = () => {
    always.hidden = list.children.length > 0;
    office.hidden = list.children.length > 0;
  };
  const add = button("Add hours", () => {
    const last = value().at(-1);
    const item = line(last ? { ...last, day: (last.day + 1) % 7 } : { day: 0, from: "09:00", to: "17:00" });
    list.append(item);
    show();
    item.querySelector("select")?.focus();
  }, { kind: "dm-small" });
  const office = button("Monday to Friday, 9 to 17", () => {
    list.replaceChildren(...OFFICE_HOURS.map(line));
    show();
    add.focus();
  }, { kind: "dm-small" });
  /** @returns {Hours[]} */
  const value = () =>
    [...list.children].map((item) => {
      const [start, end] = item.querySelectorAll("input");
      return { day: Number(item.querySelector("select")?.value), from: start.value, to: endOfField(end.value) };
    });
  list.append(...inOrder(given).map(line));
  show();
  return { value, element: make("fieldset", { class: "dk-group" }, make("legend", { class: "dm-label" }, "Opening hours"), always, list, make("div", { class: "dm-buttons" }, add, office)) };
}

/**
 * The form, and what it holds. `read` throws an InputError.
 * @param {Inbox | null} given  null: a new inbox
 * @param {CollectionView[]} collections
 */
export function inboxForm(given, collections) {
  const name = make("input", { maxlength: "100", required: true, value: given?.name ?? "", autocomplete: "off" });
  const kind = make("select", {}, make("option", { value: "widget" }, "Website: a widget on its pages"), make("option", { value: "api" }, "API: another program brings the cases"));
  const greeting = make("textarea", { rows: "2", maxlength: "2000", dir: "auto" });
  greeting.value = given?.greeting ?? "";
  const origins = make("textarea", { rows: "2", spellcheck: "false", placeholder: "https://www.example.com" });
  origins.value = given?.allowed_origins.join("\n") ?? "";
  const zones = make("datalist", { id: uniqueId("dk-zones") }, ...Intl.supportedValuesOf("timeZone").map((zone) => make("option", { value: zone })));
  const zone = make("input", { list: zones.id, required: true, autocomplete: "off", value: given?.time_zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC" });
  const hours = hoursFields(given?.opening_hours ?? []);
  const bot = check("The assistant answers first, and hands over to people", given?.bot ?? true);
  const chosen = new Set(given?.collections ?? []);
  const boxes = collections.map(({ id, name: title }) => check(title, chosen.has(id), { value: id }));
  const element = make(
    "div",
    { class: "dk-inbox-fields" },
    field("Name", name, "Customers see it above the conversation."),
    given ? null : field("Kind", kind),
    field("Websites that may show it", origins, "One a line. A page from elsewhere can’t open the widget."),
    field("Greeting", greeting, "The first words in the widget."),
    bot.element,
    make("fieldset", { class: "dk-group" }, make("legend", { class: "dm-label" }, "Collections that the assistant answers from"), ...boxes.map((box) => box.element), make("p", { class: "dm-hint" }, boxes.length ? "Every visitor of this inbox can get their passages, also if only some users may use them." : "There are no collections yet. Add them under Knowledge.")),
    make("div", {}, field("Time zone", zone, "Of the opening hours."), zones),
    hours.element,
  );
  return {
    element,
    name,
    read() {
      const openingHours = inOrder(hours.value());
      const problem = hoursProblem(openingHours);
      if (problem) throw new InputError(problem);
      return {
        name: name.value.trim(),
        ...(given ? {} : { kind: kind.value }),
        allowed_origins: originsOf(origins.value),
        time_zone: zone.value.trim(),
        opening_hours: openingHours,
        greeting: greeting.value,
        bot: bot.input.checked,
        collections: boxes.filter(({ input }) => input.checked).map(({ input }) => input.value),
      };
    },
  };
}

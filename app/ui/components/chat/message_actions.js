// The action buttons under a message, and the switcher between its versions.

import { icon, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";
import { versionNote } from "./difference_texts.js";

/** @param {string} name @param {string} label @param {() => unknown} onclick @param {string} iconName */
export function actionButton(name, label, onclick, iconName) {
  return make("button", { type: "button", class: "dm-action", "aria-label": label, "data-icon": iconName, onclick }, icon(iconName), make("span", {}, name));
}

/**
 * Actions that stand in the row where it is wide, and in the menu of the button "More" where it is narrow: the style sheet
 * shows one of the two. An action that the page hides is not in the menu either.
 */
export class MoreActions {
  /** @param {(HTMLButtonElement | null)[]} buttons  made by actionButton; null: not offered */
  constructor(buttons) {
    this.buttons = buttons.filter((button) => button !== null);
    this.more = make(
      "button",
      { type: "button", class: "dm-action dm-more", "aria-label": "More actions", title: "More actions", "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => this.#open() },
      icon("more"),
    );
    /** The elements for the row. */
    this.elements = this.buttons.length > 0 ? [make("span", { class: "dm-other-actions" }, ...this.buttons), this.more] : [];
  }

  #open() {
    const able = this.buttons.filter((button) => !button.disabled && !button.hidden && getComputedStyle(button).display !== "none");
    openMenu(
      this.more,
      "More actions",
      able.map((button) => {
        const isPressed = button.ariaPressed === "true";
        return {
          name: isPressed ? `Close ${button.textContent?.toLowerCase()}` : (button.textContent ?? ""),
          label: isPressed ? undefined : (button.ariaLabel ?? undefined),
          iconName: button.dataset.icon,
          danger: button.dataset.icon === "delete",
          action: () => button.click(),
        };
      }),
    );
  }
}

/** Focuses an action, or the button whose menu has it where the row is narrow. @param {HTMLElement} button */
export function focusAction(button) {
  const more = /** @type {HTMLElement | null | undefined} */ (button.closest(".dm-foot")?.querySelector(".dm-more"));
  (button.checkVisibility() ? button : (more ?? button)).focus();
}

/**
 * The switcher between the versions of a reply, and beside it what tells this one from the next. Null if it has neither.
 * @param {import("./types.js").Message} message
 * @param {import("./types.js").Actions} actions
 */
export function versionRow(message, actions) {
  const switcher = versionSwitcher(message, actions.show);
  const note = versionNote(message);
  if (switcher === null && note === "") return null;
  const use = make("button", { type: "button", class: "dm-action", onclick: () => actions.useSettings(message.id) }, "Use these settings");
  const seed = message.seed === null || message.seed === undefined ? null : `Seed ${message.seed}`;
  return make(
    "div",
    { class: "dm-version-row" },
    switcher,
    make("span", { class: "dm-version-note", dir: "auto", title: seed }, note),
    actions.offers("use_settings") && switcher !== null ? use : null,
  );
}

/**
 * "‹ 2 / 3 ›": switches between the versions of a message. Null if there is only one.
 * @param {import("./types.js").Message} message
 * @param {import("./types.js").Actions["show"]} show
 */
export function versionSwitcher({ id, siblings = [] }, show) {
  if (siblings.length < 2) return null;
  const at = siblings.indexOf(id);
  /** @param {string} name @param {string} label @param {number} to */
  const step = (name, label, to) =>
    make(
      "button",
      {
        type: "button",
        class: "dm-icon-button dm-small dm-version",
        "aria-label": label,
        "data-step": name,
        disabled: siblings[to] === undefined,
        onclick: () => show(siblings[to], name, id),
      },
      icon(name),
    );
  return make(
    "span",
    { class: "dm-versions", role: "group", "aria-label": `Version ${at + 1} of ${siblings.length}` },
    step("previous", "Previous version", at - 1),
    make("span", { "aria-hidden": "true" }, `${at + 1} / ${siblings.length}`),
    step("next", "Next version", at + 1),
  );
}

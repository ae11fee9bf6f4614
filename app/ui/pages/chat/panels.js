// The side panels: beside the chat on wide screens, over it on narrow ones.

import { byId } from "../../shared/dom.js";

const NARROW = matchMedia("(max-width: 900px)");

class Panel {
  /** @param {string} id @param {HTMLElement} toggle  its button @param {string} label @param {string} role */
  constructor(id, toggle, label, role) {
    this.element = /** @type {HTMLElement} */ (byId(id));
    this.toggle = toggle;
    this.toggle.setAttribute("aria-controls", id);
    this.element.setAttribute("role", role);
    this.element.setAttribute("aria-label", label);
  }

  get open() {
    return !this.element.inert;
  }

  /** @param {boolean} open */
  set(open, { moveFocus = true } = {}) {
    const hadFocus = this.element.contains(document.activeElement);
    this.element.inert = !open; // removes a hidden panel from the tab order
    this.element.classList.toggle("dm-open", open);
    this.toggle.setAttribute("aria-expanded", String(open));
    if (!open && hadFocus && moveFocus) this.toggle.focus();
  }
}

export class Panels {
  /** @param {import("../../components/header/header.js").Header} header  has the buttons of the panels */
  constructor(header) {
    const { conversations, settings } = header.toggles;
    this.conversations = new Panel("dm-conversations", conversations, "Conversations", "navigation");
    this.settings = new Panel("dm-settings", settings, "Settings", "complementary");
    this.conversations.set(!NARROW.matches);
    this.settings.set(false);
    this.settings.element.querySelector(".dm-close-settings")?.addEventListener("click", () => this.settings.set(false));
    NARROW.addEventListener("change", () => this.conversations.set(!NARROW.matches, { moveFocus: false }));
    byId("dm-chat").addEventListener("pointerdown", (/** @type {PointerEvent} */ { target }) => {
      if (NARROW.matches && target instanceof Element && !target.closest(".dm-header")) this.closeOverlays();
    });
    // On a narrow screen Esc closes the open panel, wherever the focus is, and doesn't stop a reply. A menu or dialog
    // in the panel closes first.
    document.addEventListener("keydown", (event) => {
      const open = [this.conversations, this.settings].filter((panel) => panel.open);
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented || !NARROW.matches || open.length === 0) return;
      event.preventDefault();
      for (const panel of open) panel.set(false);
    });
  }

  /**
   * Opens a panel or closes it. On a narrow screen only one is open at a time.
   * @param {"conversations" | "settings"} name
   */
  toggle(name) {
    const panel = this[name];
    const open = !panel.open;
    if (open) this.closeOverlays();
    panel.set(open);
  }

  // On a narrow screen, closes the panels to show the chat, for example after a conversation is chosen.
  closeOverlays() {
    if (!NARROW.matches) return;
    this.conversations.set(false, { moveFocus: false });
    this.settings.set(false, { moveFocus: false });
  }
}

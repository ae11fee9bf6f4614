// The side panels: shown beside the chat on a wide screen, over it on a narrow one.

import { byId } from "./dom.js";

const NARROW = matchMedia("(max-width: 900px)");

class Panel {
  constructor(id, toggleId, label, role) {
    this.element = byId(id);
    this.toggle = byId(toggleId);
    this.element.setAttribute("role", role);
    this.element.setAttribute("aria-label", label);
    this.toggle.addEventListener("click", () => this.set(!this.open));
  }

  get open() {
    return !this.element.inert;
  }

  set(open, { moveFocus = true } = {}) {
    const hadFocus = this.element.contains(document.activeElement);
    this.element.inert = !open; // a hidden panel is out of the tab order
    this.element.classList.toggle("dm-open", open);
    this.toggle.setAttribute("aria-expanded", String(open));
    if (!open && hadFocus && moveFocus) this.toggle.focus();
  }
}

export class Panels {
  constructor() {
    this.conversations = new Panel("dm-conversations", "dm-toggle-conversations", "Conversations", "navigation");
    this.settings = new Panel("dm-settings", "dm-toggle-settings", "Settings", "complementary");
    this.conversations.set(!NARROW.matches);
    this.settings.set(false);
    byId("dm-close-settings").addEventListener("click", () => this.settings.set(false));
    NARROW.addEventListener("change", () => this.conversations.set(!NARROW.matches, { moveFocus: false }));
    byId("dm-chat").addEventListener("pointerdown", (event) => {
      if (NARROW.matches && !event.target.closest("#dm-header")) this.closeOverlays();
    });
    for (const panel of [this.conversations, this.settings]) {
      panel.element.addEventListener("keydown", (event) => {
        if (event.key !== "Escape" || event.defaultPrevented || !NARROW.matches) return;
        event.preventDefault(); // Esc closes the panel and stops no reply
        panel.set(false);
      });
    }
  }

  // On a narrow screen a choice in a panel shows the chat again.
  closeOverlays() {
    if (!NARROW.matches) return;
    this.conversations.set(false, { moveFocus: false });
    this.settings.set(false, { moveFocus: false });
  }
}

// The bar above the chat: title, state and account menu.

import { Component } from "../../shared/component.js";
import { byId } from "../../shared/dom.js";
import { setUpAccountMenu } from "./account_menu.js";

export class Header extends Component {
  setTitle(title) {
    byId("dm-title").textContent = title;
  }

  get isTemporary() {
    return !byId("dm-temporary-mark").hidden;
  }

  markTemporary(temporary) {
    byId("dm-temporary-mark").hidden = !temporary;
  }

  showStatus(text, state) {
    const status = byId("dm-status");
    status.textContent = text;
    status.dataset.state = state;
  }

  // `options`: the page's options. Raises `error` when signing out fails.
  useOptions(options) {
    setUpAccountMenu(options, (error) => this.emit("error", error));
  }
}

export const mount = (context) => new Header(context);

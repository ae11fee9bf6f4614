// The messages of a conversation, and the welcome screen of an empty one.

import { Component } from "../../shared/component.js";
import { byId } from "../../shared/dom.js";
import { MessageList } from "./messages.js";
import { Welcome } from "./welcome.js";

export class Chat extends Component {
  constructor(context) {
    super(context);
    this.messages = new MessageList({
      edit: (id, text) => this.emit("edit", { id, text }),
      regenerate: (id) => this.emit("regenerate", { id }),
      resume: (id) => this.emit("resume", { id }),
      branch: (id) => this.emit("branch", { id }),
      remove: (id) => this.emit("delete", { id }),
      show: (id, step) => this.emit("version", { id, step }),
      onError: (error) => this.emit("error", error),
    });
    this.welcome = new Welcome((text) => this.emit("example_select", { text }));
    this.earlier = byId("dm-earlier");
    this.earlier.addEventListener("click", () => this.emit("earlier"));
  }
}

export const mount = (context) => new Chat(context);

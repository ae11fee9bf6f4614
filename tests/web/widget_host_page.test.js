import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { HostPage } from "../../app/ui/widget/host_page.js";

const SITE = "https://shop.example";

let parent;
let heard;
let host;

beforeEach(() => {
  heard = [];
  parent = { sent: [], postMessage: (message, origin) => parent.sent.push([message, origin]) };
  const self = { parent, origin: "https://desk.example", addEventListener: () => {} };
  host = new HostPage(self, [SITE], (message) => heard.push(message));
});

const post = (data, { source = parent, origin = SITE } = {}) => host.receive({ source, origin, data });

test("the website is heard, and answered at its own origin", () => {
  post({ deskmate: 1, type: "identify", token: "signed" });
  assert.deepEqual(heard, [{ deskmate: 1, type: "identify", token: "signed" }]);
  host.tell({ type: "close" });
  assert.deepEqual(parent.sent, [[{ deskmate: 1, type: "close" }, SITE]]);
});

test("a message of another window, of another origin or of another kind is not heard", () => {
  const hello = { deskmate: 1, type: "hello" };
  post(hello, { source: {} });
  post(hello, { source: null });
  post(hello, { origin: "https://shop.example.evil.example" });
  post(hello, { origin: "http://shop.example" });
  post(hello, { origin: "null" });
  post({ type: "hello" });
  post({ deskmate: 1, type: "constructor" });
  post({ deskmate: 1, type: "identify", token: 7 });
  post({ deskmate: 1, type: "identify" });
  post(null);
  assert.deepEqual(heard, []);
});

test("nothing is told before the website has said who it is, for it could be any page", () => {
  host.tell({ type: "unread", count: 1 });
  post({ deskmate: 1, type: "hello" }, { origin: "https://elsewhere.example" });
  host.tell({ type: "unread", count: 2 });
  assert.deepEqual(parent.sent, []);
});

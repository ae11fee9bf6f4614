import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { clientName, keyText, sessionText, storageText, usedText } from "../../app/ui/pages/account/account_text.js";
import { linkToken, redirectTarget } from "../../app/ui/pages/account/address.js";
import { connectionText, problemText } from "../../app/ui/pages/account/oidc_texts.js";

const ORIGIN = "https://desk.example:8443";

test("after signing in, the user gets to the page that they wanted, with its query and fragment", () => {
  const pages = ["/", "/desk#usage", "/?c=1&m=a%20b", "/account", "/a%2f%2fb?next=//evil.example#//evil.example"];
  for (const page of pages) assert.equal(redirectTarget(page, ORIGIN), ORIGIN + page);
});

test("no address leads to another origin, however it is written", () => {
  const hostile = [
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "/\n\\evil.example",
    "/\r\n/evil.example",
    "/\0/evil.example",
    "//evil.example:8443/",
    "//desk.example:8443@evil.example/",
    "//desk.example:8443.evil.example/",
    "//desk.example/", // another port
    "//user:password@desk.example:8443//evil.example",
    // Paths of this origin that would be another host as an address of their own.
    "/.//evil.example",
    "/./\\evil.example",
    "/x/..//evil.example",
    "/%2e//evil.example",
    "/%2E%2e/%2e//evil.example",
    "//desk.example:8443//evil.example",
    "/.\t//evil.example",
    "https://evil.example",
    "https:/evil.example",
    "https:evil.example",
    "javascript:alert(1)",
    "\tjavascript:alert(1)",
    "/\tjavascript:alert(1)",
    " //evil.example",
    "data:text/html,x",
    "%2F%2Fevil.example",
    "evil.example",
    "//[",
    "/\u{d800}",
    "",
    null,
  ];
  for (const next of hostile) {
    // As the browser reads the address that it is sent to.
    const { origin, username, password } = new URL(redirectTarget(next, ORIGIN), `${ORIGIN}/sign-in`);
    assert.deepEqual([origin, username, password], [ORIGIN, "", ""], JSON.stringify(next));
  }
});

test("what is not a path of this origin leads to the chat", () => {
  for (const next of ["//evil.example/desk", "//desk.example/desk", "//desk.example:8443.evil.example/desk", "https://evil.example", `${ORIGIN}/desk`, "javascript:alert(1)", "desk", "//[", "", null]) {
    assert.equal(redirectTarget(next, ORIGIN), `${ORIGIN}/`, String(next));
  }
});

test("the token of a link is in its path or its fragment", () => {
  assert.equal(linkToken({ pathname: "/invitation/a-b_c", hash: "" }), "a-b_c");
  assert.equal(linkToken({ pathname: "/invitation/a%2Db", hash: "#other" }), "a-b");
  assert.equal(linkToken({ pathname: "/setup", hash: "#a-b_c" }), "a-b_c");
  assert.equal(linkToken({ pathname: "/setup", hash: "" }), "");
  assert.equal(linkToken({ pathname: "/invitation/", hash: "" }), "");
});

test("a link that was cut off in a character is left to the server to refuse", () => {
  for (const token of ["%", "a%2", "%E0%A4"]) assert.equal(linkToken({ pathname: `/invitation/${token}`, hash: "" }), token);
});

test("a browser is named after itself, not after those that it is like", () => {
  const webkit = "AppleWebKit/605.1.15 (KHTML, like Gecko)";
  const chrome = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0";
  const names = {
    [`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${chrome} Safari/537.36`]: "Chrome on Windows",
    [`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${chrome} Safari/537.36 Edg/131.0.0.0`]: "Edge on Windows",
    [`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${chrome} Safari/537.36 OPR/116.0.0.0`]: "Opera on Windows",
    [`Mozilla/5.0 (Linux; Android 10; K) ${chrome} Mobile Safari/537.36`]: "Chrome on Android",
    [`Mozilla/5.0 (Linux; Android 10; K) ${chrome} Mobile Safari/537.36 EdgA/131.0.0.0`]: "Edge on Android",
    [`Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/27.0 Chrome/125.0.0.0 Mobile Safari/537.36`]: "Samsung Internet on Android",
    [`Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) ${chrome} Safari/537.36`]: "Chrome on ChromeOS",
    [`Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/131.0.0.0 Safari/537.36`]: "Chrome on Linux",
    "Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0": "Firefox on Linux",
    [`Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) ${webkit} Version/18.1 Safari/605.1.15`]: "Safari on macOS",
    [`Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) ${webkit} Version/18.1 Mobile/15E148 Safari/604.1`]: "Safari on iPhone",
    [`Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) ${webkit} CriOS/131.0 Mobile/15E148 Safari/604.1`]: "Chrome on iPhone",
    [`Mozilla/5.0 (iPad; CPU OS 18_1 like Mac OS X) ${webkit} FxiOS/133.0 Mobile/15E148 Safari/605.1.15`]: "Firefox on iPad",
    [`Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) ${webkit} Version/18.0 EdgiOS/131.0 Mobile/15E148 Safari/604.1`]: "Edge on iPhone",
  };
  for (const [userAgent, name] of Object.entries(names)) assert.equal(clientName(userAgent), name);
});

test("a program is shown by the beginning of what it calls itself, and one that says nothing is unknown", () => {
  assert.equal(clientName("python-httpx/0.28.1"), "python-httpx/0.28.1");
  assert.equal(clientName("curl on Linux"), "curl on Linux");
  assert.equal(clientName("x".repeat(500)), "x".repeat(60));
  assert.equal(clientName("Safari/537.36"), "Safari");
  assert.equal(clientName(""), "Unknown client");
});

test("the session of this page is told from others", () => {
  const session = { id: "1", user_agent: "", address: "10.0.0.1", last_seen_at: "2026-03-29T12:00:00Z", current: true };
  assert.equal(sessionText(session), "This session · 10.0.0.1");
  assert.match(sessionText({ ...session, current: false }), /^Last seen .*2026.* · 10\.0\.0\.1$/);
});

test("a key expires at its time, not after it, and says so", () => {
  const key = { beginning: "dmk_abc", scopes: ["models"], expires_at: null, last_used_at: null };
  assert.equal(keyText(key), "dmk_abc… · lists the models · never used · never expires");
  const ends = { ...key, scopes: ["chat", "models"], expires_at: "2026-03-29T12:00:00Z" };
  assert.match(keyText(ends, new Date("2026-03-29T11:59:59Z")), /^dmk_abc… · sends chats to the model, lists the models · never used · expires .*2026/);
  assert.match(keyText(ends, new Date("2026-03-29T12:00:00Z")), / · expired .*2026/);
  assert.match(keyText({ ...key, last_used_at: "2026-03-29T12:00:00Z" }), / · last used .*2026/);
});

const GIB = 2 ** 30;
const storage = (more) => ({ used_bytes: 0, max_bytes: GIB, conversations: 2, max_conversations: 20_000, tags: 0, max_tags: null, responses: 0, ...more });
const advice = (more) => storageText(storage(more)).split(".").slice(-2)[0].trim();

test("storage with and without limits", () => {
  assert.equal(storageText(storage({})), "You use 0 MiB of 1 GiB, in 2 of 20,000 conversations.");
  assert.equal(storageText(storage({ max_bytes: null, max_conversations: null, conversations: 1 })), "You use 0 MiB, in 1 conversation.");
  assert.equal(storageText(storage({ max_conversations: null, conversations: 0 })), "You use 0 MiB of 1 GiB, in 0 conversations.");
  assert.equal(storageText(storage({ max_conversations: 1, conversations: 1 })).split(".")[0], "You use 0 MiB of 1 GiB, in 1 of 1 conversation");
  assert.equal(storageText(storage({ responses: 1 })), "You use 0 MiB of 1 GiB, in 2 of 20,000 conversations and 1 stored response.");
  assert.equal(usedText(storage({ used_bytes: 1 })), "less than 0.1 MiB of 1 GiB");
});

test("who has no room left is told what to do, whichever the limit, and who is close to it is warned", () => {
  const full = "To add more, delete some conversations";
  assert.equal(advice({ used_bytes: GIB }), full);
  assert.equal(advice({ used_bytes: 2 * GIB }), full);
  assert.equal(advice({ conversations: 20_000 }), full);
  assert.equal(advice({ max_bytes: 0 }), full, "a limit of nothing is a limit");
  assert.equal(advice({ used_bytes: GIB, responses: 5 }), "To add more, delete some conversations or the stored responses");
  assert.equal(advice({ used_bytes: 0.95 * GIB }), "Your storage is almost full");
  for (const more of [{ used_bytes: 0.9 * GIB }, { used_bytes: 9 * GIB, max_bytes: null }, { conversations: 30_000, max_conversations: null }]) {
    assert.ok(!storageText(storage(more)).includes("full") && !storageText(storage(more)).includes("delete"), JSON.stringify(more));
  }
});

test("a problem of the sign-in provider is one of ours, whatever the address says", () => {
  assert.match(problemText("no_role", "Acme"), /^None of your groups at Acme may use this desk\. /);
  for (const made of ["<b>Call 555</b>", "constructor", "__proto__", ""]) assert.equal(problemText(made, "Acme"), problemText("denied", "Acme"));
  assert.match(problemText("unavailable", null), /^The sign-in provider can't be reached/);
});

test("the sign-in page has a sentence for each problem of the server", () => {
  const source = readFileSync(new URL("../../app/auth/oidc/errors.py", import.meta.url), "utf8");
  const problems = [...source.matchAll(/^ {4}[A-Z_]+ = "(\w+)"/gm)].map(([, name]) => name);
  assert.equal(problems.length, 9);
  const sentences = problems.map((name) => problemText(name, "Acme"));
  assert.equal(new Set(sentences).size, problems.length);
});

test("the connection to a provider says how to sign in", () => {
  const told = (/** @type {string | null} */ as, /** @type {boolean} */ has) => connectionText({ provider: "Acme", connected_as: as, has_password: has });
  assert.equal(told("eve", false), "You sign in as eve. This account has no password.");
  assert.match(told("eve", true), /^Connected as eve\./);
  assert.match(told(null, true), /^Connect your account/);
});

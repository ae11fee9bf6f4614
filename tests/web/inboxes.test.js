import assert from "node:assert/strict";
import { test } from "node:test";

import { aboutInbox, endInField, endOfField, hoursProblem, inOrder, mailText, OFFICE_HOURS, originsOf, scriptTag } from "../../app/ui/pages/desk/inbox_text.js";

test("the script tag names this server, and no token ends its attribute", () => {
  assert.equal(scriptTag("https://desk.example", "tok-1"), '<script src="https://desk.example/widget/tok-1.js" async></script>');
  assert.ok(!scriptTag("https://desk.example", '"><b>').includes('"><b>'));
});

test("a website is written as its origin, once; what is none is refused by name", () => {
  assert.deepEqual(originsOf(" https://www.example.com/shop?x=1\nhttps://www.example.com, http://localhost:8080 "), ["https://www.example.com", "http://localhost:8080"]);
  assert.deepEqual(originsOf(" \n"), []);
  for (const wrong of ["www.example.com", "javascript:alert(1)", "*", "https://"]) assert.throws(() => originsOf(wrong), /is no website/, wrong);
});

test("hours that end before they begin, overlap or are not set are named by their day", () => {
  const hours = (day, from, to) => ({ day, from, to });
  assert.equal(hoursProblem([]), "");
  assert.equal(hoursProblem(OFFICE_HOURS), "");
  assert.equal(hoursProblem([hours(0, "13:00", "17:00"), hours(0, "09:00", "13:00"), hours(1, "09:00", "12:00")]), "");
  assert.match(hoursProblem([hours(2, "22:00", "02:00")]), /^Wednesday: 02:00 is not after 22:00/);
  assert.match(hoursProblem([hours(6, "12:00", "14:00"), hours(6, "09:00", "13:00")]), /^Sunday: .* overlap/);
  assert.match(hoursProblem([hours(3, "", "14:00")]), /^Thursday: set both/);
  assert.deepEqual(inOrder([hours(1, "09:00", "10:00"), hours(0, "12:00", "13:00"), hours(0, "09:00", "10:00")]).map(({ day, from }) => `${day} ${from}`), ["0 09:00", "0 12:00", "1 09:00"]);
});

test("the end of a day goes through a field of a time", () => {
  for (const time of ["24:00", "17:30", ""]) assert.equal(endOfField(endInField(time)), time);
  assert.equal(hoursProblem([{ day: 0, from: "18:00", to: endOfField("00:00") }]), "");
});

test("an inbox is told in a line", () => {
  assert.equal(aboutInbox({ kind: "widget", bot: true, members: [{}], opening_hours: OFFICE_HOURS }), "Website · assistant on · 1 member · opening hours");
  assert.equal(aboutInbox({ kind: "api", bot: false, members: [], opening_hours: [] }), "API · people only · 0 members · always open");
});

test("whether replies are mailed is said in sentences, and so is what is wrong", () => {
  const mail = { sender: "desk@shop.example", server: "smtp.example:587", delay_minutes: 1, pending: 0, last_sent_at: null, error: null };
  assert.match(mailText({ ...mail, sender: null, server: null }), /set APP_MAIL_HOST and APP_MAIL_FROM\.$/);
  assert.match(mailText(mail), /within 1 minute get it by e-mail from desk@shop.example\. None was sent yet\.$/);
  const trouble = mailText({ ...mail, pending: 2, last_sent_at: "2026-11-26T10:00:00Z", error: "The server of mail answered 450 Later" });
  assert.match(trouble, /^smtp\.example:587 has trouble: The server of mail answered 450 Later\. It is tried again\. .* 2 replies may still be sent\.$/);
});

import assert from "node:assert/strict";
import { test } from "node:test";

import { actionText, detailsText, targetText } from "../../app/ui/pages/desk/audit_text.js";

const entry = (details, more = {}) => ({ target: null, names: {}, details, ...more });

test("an entry speaks of names and labels; of what was deleted the id is left", () => {
  const names = { i1: "Website", u1: "Mia" };
  assert.equal(targetText(entry({}, { target: "i1", names })), "Website");
  assert.equal(targetText(entry({}, { target: "i2", names })), "i2");
  assert.equal(targetText(entry({})), "");
  assert.equal(targetText(entry({ name: "terms.md", collection: "c1" }, { target: "d1", action: "document_removed" })), "terms.md");
  assert.equal(targetText(entry({}, { action: "signed_in", target: "01a21c4f-96f0" })), "Session");
  assert.equal(targetText(entry({}, { action: "invited", target: "01a21c4f-934a" })), "Invitation");
  assert.equal(detailsText(entry({ user_id: "u1" }, { names })), "User: Mia");
  assert.equal(detailsText(entry({ fields: "allowed_origins bot name" })), "Changed: Websites that may show it, Assistant, Name");
  assert.equal(detailsText(entry({ before: "agent", role: "admin" })), "Before: Agent; Role: Admin");
  assert.equal(detailsText(entry({ everyone: true, documents: 3, note: null })), "For every user: yes; Documents: 3; Note: –");
  assert.equal(actionText("webhook_secret_changed"), "Webhook secret changed");
});

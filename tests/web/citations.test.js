import assert from "node:assert/strict";
import { test } from "node:test";

import { headingBelowTitle } from "../../app/ui/components/chat/citations.js";

test("a document's title is not repeated by its first heading", () => {
  const below = (title, heading) => headingBelowTitle({ number: 1, title, heading, text: "" });
  assert.equal(below("Deploy", "Deploy > Upgrades"), "Upgrades");
  assert.equal(below("Deploy", "Deploy"), "");
  assert.equal(below("Deploy", "Upgrades"), "Upgrades");
  assert.equal(below("Deploy", ""), "");
  assert.equal(below("Deploy", "Deployments > Upgrades"), "Deployments > Upgrades");
});

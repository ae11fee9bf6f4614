import assert from "node:assert/strict";
import { test } from "node:test";

import { addLabels, withLabels } from "../../app/ui/shared/labels.js";

const invalid = (field, reason) => withLabels(`The field '${field}' is not valid: ${reason}.`);

test("the parameters' labels come with the page's options", () => {
  assert.equal(withLabels("top_p must be at most 1 (got 3)."), "top_p must be at most 1 (got 3).");
  addLabels([{ name: "top_p", label: "Top p" }]);
  assert.equal(withLabels("top_p must be at most 1 (got 3)."), "Top p must be at most 1.");
  assert.equal(withLabels("top_p must be at most 1"), "Top p must be at most 1.");
});

test("the API's sentences, as the page says them", () => {
  addLabels([
    { name: "max_tokens", label: "Maximum length" },
    { name: "stop", label: "Stop strings" },
    { name: "seed", label: "Seed" },
    { name: "top_p", label: "Top-p" },
  ]);
  const sentences = {
    "max_tokens must be at least 1 (got 0).": "Maximum length must be at least 1.",
    "stop must be at most 16 strings (got '17 strings').": "Stop strings must be at most 16 strings.",
    "seed must be between 0 and 9223372036854775807 (got -5).": "Seed must be between 0 and 9223372036854775807.",
    "The field 'template.description' is not valid: String should have at least 1 character.": "Description must not be empty.",
    "The field 'settings.max_tokens' is not valid: Input should be less than or equal to 2147483647.": "Maximum length must be at most 2147483647.",
    "The field 'template.recommended.top_p' is not valid: top_p must be between 0 and 1 (got 3).": "Top-p must be between 0 and 1.",
    "The field 'text' is missing.": "The message is missing.",
    "The field 'unheard.of' is not valid: Input should be a dog.": "The field 'unheard.of' is not valid: Input should be a dog.",
    "The model is asleep. Wake it up in the settings.": "The model is asleep. Wake it up in the settings.",
  };
  for (const [message, said] of Object.entries(sentences)) assert.equal(withLabels(message), said);
});

test("a missing field", () => {
  assert.equal(withLabels("The field 'display_name' is missing."), "Display name is missing.");
});

test("the reasons are ends of a sentence", () => {
  const reasons = {
    "String should have at least 1 character": "must not be empty",
    "String should have at least 8 characters": "must have at least 8 characters",
    "List should have at most 20 items after validation, not 21": "must have at most 20 items",
    "String should match pattern '^[a-z][a-z0-9_]*$'": "must start with a lowercase letter and contain only lowercase letters, digits and _",
    "Input should be greater than or equal to 0": "must be at least 0",
    "Input should be less than or equal to 2.5": "must be at most 2.5",
    "Input should be a valid integer, got a number with a fractional part": "must be a whole number that is not too large",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be 'up' or 'down'": "must be 'up' or 'down'",
  };
  for (const [reason, said] of Object.entries(reasons)) assert.equal(invalid("title", reason), `Title ${said}.`);
  assert.equal(invalid("title", "Something new"), "Title: Something new.");
});

test("the label is that of the path's last field, and a variable has its number", () => {
  assert.equal(invalid("settings.system_prompt", "Input should be a valid string"), "System prompt text must be a valid string.");
  assert.equal(invalid("template.variables[1].name", "String should have at least 1 character"), "Name of variable 2 must not be empty.");
  assert.equal(invalid("tags[3]", "String should have at most 40 characters"), "Tags must have at most 40 characters.");
});

test("a message without a known field stays as it is, also one that names a property of every object", () => {
  for (const message of ["Out of memory.", "", "The field 'constructor' is missing.", "The field 'toString' is not valid: x.", "__proto__ must be set"]) {
    assert.equal(withLabels(message), message);
  }
});

// Replaces the field names in the API's error messages with the labels shown on the page.

/** @type {Record<string, string>} by field */
const LABELS = {
  system_prompt: "System prompt text",
  system_prompt_name: "System prompt",
  text: "The message",
  title: "Title",
  description: "Description",
  body: "Text",
  name: "Name",
  default: "Default",
  variables: "Variables",
  tags: "Tags",
  comment: "Comment",
  note: "The note",
  password: "Password",
  present: "Current password",
  new: "New password",
  display_name: "Display name",
  days: "Expires after",
  scopes: "Permissions",
  role: "Role",
  model: "Another model",
  url: "Address",
  events: "Events",
  inbox_id: "Inbox",
  subject: "Subject",
  priority: "Priority",
  allowed_origins: "Websites that may show it",
  time_zone: "Time zone",
  opening_hours: "Opening hours",
  greeting: "Greeting",
  question: "Question",
  tag: "Tag",
  q: "Search",
  first: "From",
  last: "To",
};

/** The name of a chat's setting, as the settings panel has it. @param {string} name */
export const labelOfSetting = (name) => SETTINGS[name] ?? LABELS[name] ?? name;

/** Adds the labels of the sampling parameters, which the page loads with its options. @param {{name: string, label: string}[]} parameters */
export function addLabels(parameters) {
  for (const { name, label } of parameters) LABELS[name] = label;
}

/** @type {Record<string, string>} of settings that are no sampling parameters */
const SETTINGS = {
  model: "Model",
  adapter: "Adapter",
  thinking: "Thinking",
  max_thinking_tokens: "Maximum thinking",
  use_tools: "Tools",
  collections: "Sources",
  json_schema: "JSON schema",
  system_prompt: "System prompt",
  system_prompt_variables: "Variables of the prompt",
};

/**
 * Pydantic's validation messages, and their rewording as the end of a sentence that starts with the label.
 * @type {[RegExp, (...match: string[]) => string][]}
 */
const REASONS = [
  [/^String should have at least 1 character$/, () => "must not be empty"],
  [/^(?:String|List|Tuple|Dictionary) should have at (least|most) (\d+) (\w+)/, (_, way, count, things) => `must have at ${way} ${count} ${things}`],
  [/^String should match pattern '\^\[a-z\]\[a-z0-9_\]\*\$'$/, () => "must start with a lowercase letter and contain only lowercase letters, digits and _"],
  [/^Input should be greater than or equal to (\S+)$/, (_, bound) => `must be at least ${bound}`],
  [/^Input should be less than or equal to (\S+)$/, (_, bound) => `must be at most ${bound}`],
  [/^Input should be a valid integer|^Unable to parse input string as an integer/, () => "must be a whole number that is not too large"],
  [/^Input should be a valid number/, () => "must be a number"],
  [/^Input should be (.+)$/s, (_, rest) => `must be ${rest}`],
];

const BOUND = /^(\w+) (must be .*?)(?: \(got .*\))?\.?$/s;

/**
 * The label of a field path: "template.variables[1].name" gives "Name of variable 2". Undefined for unknown fields.
 * @param {string} path
 */
function labelOf(path) {
  const [field = ""] = /\w+(?=(?:\[\d+\])?$)/.exec(path) ?? [];
  const label = Object.hasOwn(LABELS, field) ? LABELS[field] : undefined;
  const variable = /\bvariables\[(\d+)\]\./.exec(path);
  return label && variable ? `${label} of variable ${Number(variable[1]) + 1}` : label;
}

/** @param {string} label @param {string} reason */
function withReason(label, reason) {
  for (const [pattern, end] of REASONS) {
    const match = pattern.exec(reason);
    if (match) return `${label} ${end(...match)}.`;
  }
  const bound = BOUND.exec(reason);
  return bound ? `${label} ${bound[2]}.` : `${label}: ${reason}.`;
}

const INVALID = /^The field '([^']+)' is not valid: (.*)\.$/s;
const MISSING = /^The field '([^']+)' is missing\.$/;

/** The message with labels in place of field names; unchanged if it names no known field. @param {string} message */
export function withLabels(message) {
  const invalid = INVALID.exec(message);
  const missing = MISSING.exec(message);
  const bound = BOUND.exec(message);
  const label = labelOf((invalid ?? missing ?? bound)?.[1] ?? "");
  if (!label) return message;
  if (invalid) return withReason(label, invalid[2]);
  return missing ? `${label} is missing.` : `${label} ${bound?.[2]}.`;
}

// A template as the fields of a form, and the template that such fields make.

/** @import { ChatSettings, Template } from "../../shared/api_types.js" */

/** @typedef {"prompt" | "canned"} TemplateKind */

/**
 * The fields of a variable. `saved`: the default that it had, or null if it had none.
 * @typedef {{name: string, description: string, default: string, saved: string | null}} VariableFields
 */

/**
 * The texts of the fields. `recommended`: a text for each sampling parameter that has a field; "" leaves it open.
 * @typedef {object} TemplateFields
 * @property {string} title
 * @property {string} description
 * @property {VariableFields[]} variables
 * @property {Record<string, string>} recommended
 * @property {string[]} tools  names of tool servers
 * @property {string} size  of the model it needs, in billions of parameters; "": any
 * @property {string} body
 */

const MAX_NAME_CHARS = 64;

/** Parameters of a model in the unit of the field. */
const BILLION = 1e9;

/** @type {Template} */
export const EMPTY = { title: "", description: "", variables: [], recommended: {}, tools: [], min_parameters: null, body: "" };

/**
 * @param {Template} template
 * @param {string[]} parameters  those that have a field
 * @returns {TemplateFields}
 */
export function fieldsOf({ title, description, variables = [], recommended = {}, tools = [], min_parameters: needed = null, body }, parameters) {
  /** @type {Record<string, unknown>} */
  const values = { ...recommended };
  return {
    title,
    description,
    variables: variables.map(({ name, description: about, default: value = null }) => ({ name, description: about, default: value ?? "", saved: value })),
    recommended: Object.fromEntries(parameters.map((name) => [name, String(values[name] ?? "")])),
    tools,
    size: needed === null ? "" : String(needed / BILLION),
    body,
  };
}

/**
 * @param {TemplateFields} fields
 * @param {TemplateKind} kind
 * @param {ChatSettings} [saved]  the recommended settings as they were: those without a field stay
 * @returns {Template}
 */
export function templateOf({ title, description, variables, recommended, tools, size, body }, kind, saved = {}) {
  const withoutField = Object.entries(saved).filter(([name]) => !Object.hasOwn(recommended, name));
  const chosen = Object.entries(recommended).flatMap(([name, text]) => (text === "" ? [] : [[name, Number(text)]]));
  return {
    title: title.trim(),
    description: description.trim(),
    // An empty default is "" in a prompt. In a canned reply it means that the value is required, unless it was "" before.
    variables: variables.map((variable) => ({
      name: variable.name.trim(),
      description: variable.description.trim(),
      default: variable.default || (kind === "prompt" || variable.saved === "" ? "" : null),
    })),
    recommended: kind === "prompt" ? Object.fromEntries([...withoutField, ...chosen]) : {},
    tools: kind === "prompt" ? tools : [],
    min_parameters: kind === "prompt" && size !== "" ? Math.round(Number(size) * BILLION) : null,
    body,
  };
}

/** Stands for each variable that must be filled in, so that a preview can be rendered. @param {Template} template */
export function previewValues({ variables = [] }) {
  const required = variables.filter(({ default: value = null }) => value === null);
  return Object.fromEntries(required.map(({ name }) => [name, `[${name}]`]));
}

/**
 * The name that a new template gets from its title, in a-z, 0-9 and hyphens. A title without any of these letters gets
 * a number that no other template has.
 * @param {string} title
 * @param {TemplateKind} kind
 * @param {string[]} taken  the names of the other templates
 */
export function nameFor(title, kind, taken) {
  const plain = title.normalize("NFKD").replace(/\p{Mark}/gu, "").toLowerCase();
  const name = plain.replace(/[^a-z0-9]+/g, "-").replace(/^-/, "").slice(0, MAX_NAME_CHARS).replace(/-$/, "");
  if (name !== "") return name;
  let number = 1;
  while (taken.includes(`${kind}-${number}`)) number++;
  return `${kind}-${number}`;
}

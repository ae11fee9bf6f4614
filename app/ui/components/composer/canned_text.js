// Finds and fills in canned replies.

/** @typedef {{name: string, description?: string, default?: string | null}} Variable */

/**
 * A canned reply; see canned_replies.py.
 * @typedef {object} CannedReply
 * @property {string} name
 * @property {string} [title]
 * @property {string} [description]
 * @property {Variable[]} [variables]
 * @property {string} [body]
 */

/**
 * Whether title, description and name contain every word of the query, in any order.
 * @param {CannedReply} reply
 * @param {string} query
 */
export function fits({ title = "", description = "", name }, query) {
  const text = `${title} ${description} ${name}`.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/**
 * The text of a canned reply. A `{{ name }}` that is no variable stays as it is.
 * @param {string} body
 * @param {Record<string, string>} values
 */
export const filledIn = (body, values) =>
  body.replace(/\{\{\s*(\w+)\s*\}\}/g, (whole, name) => (Object.hasOwn(values, name) ? /** @type {string} */ (values[name]) : whole));

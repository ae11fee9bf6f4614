// Types of the chat's value and of its actions.

/**
 * @typedef {object} MessageStats
 * @property {number} prompt_tokens
 * @property {number | null} [cached_prompt_tokens]  null: unknown
 * @property {number} completion_tokens
 * @property {number} [ttft_ms]  time to the first token
 * @property {number} [tokens_per_second]
 * @property {string} [finish_reason]
 */

/** @typedef {{rating: "up" | "down", reasons: string[], comment: string}} Opinion  feedback on a reply */

/**
 * A message; see messages.py.
 * @typedef {object} Message
 * @property {string} id  its own, or made from its position
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} [status]
 * @property {boolean} [mayGrow]  it has no status, so more text may follow
 * @property {string | null} [error]
 * @property {MessageStats | null} [stats]
 * @property {string[]} [siblings]
 * @property {Partial<Opinion> | null} [feedback]
 * @property {number} [omitted_messages]
 * @property {number | null} [context_length]
 * @property {boolean} [has_system_prompt]
 */

/** @typedef {{status?: string, stats?: MessageStats | null, error?: string | null}} End  how a reply ended */

/**
 * What users can do with a message. The results of functions that change something are false, or a promise of false,
 * if the change was refused.
 * @typedef {object} Actions
 * @property {(name: string) => boolean} offers  whether an action is offered
 * @property {(id: string, text: string) => unknown} edit
 * @property {(id: string) => unknown} regenerate
 * @property {(id: string) => unknown} resume
 * @property {(id: string) => unknown} branch
 * @property {(id: string) => unknown} remove
 * @property {(id: string, step: string, shown: string) => unknown} show  shows version `id` in place of `shown`
 * @property {(id: string, opinion: Opinion | null) => unknown} rate  rejects if it could not be saved; null: no opinion
 * @property {(error: unknown) => unknown} onError
 * @property {(id: string) => string | null} draftKey  where an unsent edit is kept; null: nowhere
 */

export {};

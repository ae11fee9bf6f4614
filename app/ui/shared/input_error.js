/** What the user entered is refused by the page itself. Its message says why, in words for them. */
export class InputError extends Error {}

// Conversation and message ids in the page's URL.

/** @param {string | null} id @param {string | null | undefined} messageId */
export const conversationUrl = (id, messageId = null) =>
  id ? `/?${new URLSearchParams({ c: id, ...(messageId ? { m: messageId } : {}) })}` : "/";

/** @param {string} search  the query of the page's URL */
export const parseLocation = (search = location.search) => {
  const parameters = new URLSearchParams(search);
  return { id: parameters.get("c"), at: parameters.get("m") };
};

// Conversation and message ids in the page's URL.

/** @param {string | null} id @param {string | null | undefined} messageId */
export const conversationUrl = (id, messageId = null) =>
  id ? `/?${new URLSearchParams(messageId ? { c: id, m: messageId } : { c: id })}` : "/";

export const parseLocation = () => {
  const parameters = new URLSearchParams(location.search);
  return { id: parameters.get("c"), at: parameters.get("m") };
};

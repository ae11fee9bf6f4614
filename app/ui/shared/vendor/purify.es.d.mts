// Types of what the page uses of DOMPurify.

declare const DOMPurify: {
  sanitize(html: string, options: Record<string, unknown>): DocumentFragment;
};
export default DOMPurify;

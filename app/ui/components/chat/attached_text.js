// Files in a message's text: between marks that the server made, see app/domain/attached_files.py.

/** @typedef {{name: string, size: number, tokens: number, text: string, block: string}} AttachedFile */

const BLOCK = /\n*<file name="([^"\n]*)" size="(\d+)" tokens="(\d+)" mark="([0-9a-f]{8})">\n[^\n]*\n\n([\s\S]*?)\n<\/file \4>/g;
/** @type {Record<string, string>} */
const ENTITIES = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };

/** What the user wrote, and the files after it. @param {string} content @returns {{text: string, files: AttachedFile[]}} */
export function splitFiles(content) {
  if (!content.includes("<file ")) return { text: content, files: [] };
  const files = [...content.matchAll(BLOCK)].map(([block, name, size, tokens, , text]) => ({
    name: name.replace(/&(lt|gt|quot|#x27|amp);/g, (entity) => ENTITIES[entity]),
    size: Number(size),
    tokens: Number(tokens),
    text,
    block: block.replace(/^\n+/, ""),
  }));
  return files.length === 0 ? { text: content, files } : { text: content.replace(BLOCK, "").trim(), files };
}

/** The message of a text and the blocks of its files. @param {string} text @param {{block: string}[]} files */
export const joinFiles = (text, files) => [text, ...files.map(({ block }) => block)].filter((part) => part.trim() !== "").join("\n\n");

/** "812 bytes", "12.3 KB", "1.2 MB" @param {number} bytes */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  return bytes < 999_950 ? `${(bytes / 1000).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// What these pages take from their own address. A link to them may have anything there.

/**
 * The page to open after signing in: the address's `next`, if it is within this origin (otherwise an open redirect).
 * Absolute, because a path of this origin can begin with `//`, which as an address is another host.
 * @param {string | null} next
 * @param {string} origin
 */
export function redirectTarget(next, origin) {
  if (!next?.startsWith("/") || !URL.canParse(next, origin)) return `${origin}/`;
  const target = new URL(next, origin);
  return target.origin === origin ? origin + target.pathname + target.search + target.hash : `${origin}/`;
}

/**
 * The token of an invitation (/invitation/TOKEN), or of a setup or reset link (/setup#TOKEN); "" if there is none.
 * @param {{pathname: string, hash: string}} address
 */
export function linkToken({ pathname, hash }) {
  if (!pathname.startsWith("/invitation/")) return hash.slice(1);
  const token = pathname.slice("/invitation/".length);
  try {
    return decodeURIComponent(token);
  } catch {
    return token; // not encoded: the server says that it opens nothing
  }
}

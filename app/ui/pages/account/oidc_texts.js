// What the pages say about signing in with a provider.

/** @import { OidcConnection } from "../../shared/api_types.js" */

/** @type {Record<string, (provider: string) => string>} */
const PROBLEMS = {
  unavailable: (provider) => `${provider} can't be reached right now, or its answer made no sense. Try again later, or use your password.`,
  denied: (provider) => `${provider} didn't sign you in. Try again, or use your password.`,
  expired: () => "This sign-in took too long, or began in another browser. Try again.",
  invalid: (provider) => `The answer of ${provider} couldn't be verified, so you weren't signed in. Try again; if it happens again, tell an admin.`,
  no_role: (provider) => `None of your groups at ${provider} may use this desk. Ask an admin for access.`,
  disabled: () => "This account is disabled. Ask an admin to enable it.",
  name_taken: (provider) =>
    `An account with your username exists already. Sign in with its password and connect ${provider} on your account page, or ask an admin.`,
  connected_elsewhere: (provider) => `That user of ${provider} is connected to another account.`,
  too_many: () => "Too many sign-in attempts. Try again in a minute.",
};

/**
 * The sentence for a problem that the server has put into the page's address, where a link can put anything.
 * @param {string} problem
 * @param {string | null} provider
 */
export function problemText(problem, provider) {
  const text = Object.hasOwn(PROBLEMS, problem) ? PROBLEMS[problem] : PROBLEMS.denied;
  return text(provider ?? "The sign-in provider");
}

/** @param {OidcConnection} connection */
export function connectionText({ provider, connected_as: connectedAs, has_password: hasPassword }) {
  if (connectedAs === null) return `Connect your account to sign in with ${provider} as well as with your password.`;
  if (!hasPassword) return `You sign in as ${connectedAs}. This account has no password.`;
  return `Connected as ${connectedAs}. You can sign in with ${provider} or with your password.`;
}

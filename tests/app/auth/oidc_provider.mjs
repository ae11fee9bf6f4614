// npm's oidc-provider, for tests: signs in whom the form names, with the groups that a JSON file lists by user.
// Usage: node oidc_provider.mjs PORT CLIENT_ID SECRET ORIGIN GROUPS_FILE. Prints "ready" once it listens.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, clientId, secret, origin, groupsFile] = process.argv.slice(2);
const require = createRequire(new URL("../../web/package.json", import.meta.url));
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: clientId,
      client_secret: secret,
      redirect_uris: [`${origin}/api/account/oidc/callback`],
      post_logout_redirect_uris: [`${origin}/sign-in`],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username", "name", "groups"], email: ["email"] },
  pkce: { required: () => true },
  cookies: { keys: ["of this test"] },
  findAccount: (_ctx, id) => {
    const groups = JSON.parse(readFileSync(groupsFile, "utf8"))[id] ?? [];
    return { accountId: id, claims: () => ({ sub: id, preferred_username: id, name: id, groups }) };
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));

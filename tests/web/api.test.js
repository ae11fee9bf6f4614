import { fakeFetch, place, raise } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { ApiError, api, query, randomId, request, signOut } from "../../app/ui/shared/api.js";

beforeEach(() => Object.assign(place, { pathname: "/", search: "", hash: "", went: [], reloads: 0 }));

/** The error of a request that gets this answer. */
async function errorOf(answer) {
  fakeFetch({ "GET /x": answer });
  const error = await request("GET", "/x").then(() => assert.fail("the request succeeded"), (failure) => failure);
  assert.ok(error instanceof ApiError);
  return error;
}

test("a server that does not answer is status 0", async () => {
  const { status, code, message } = await errorOf(undefined);
  assert.deepEqual([status, code], [0, "unreachable"]);
  assert.match(message, /cannot be reached/);
});

test("an error has the server's message, with labels for field names", async () => {
  const { status, code, message } = await errorOf([422, { error: { code: "invalid_input", message: "The field 'title' is missing." } }]);
  assert.deepEqual([status, code, message], [422, "invalid_input", "Title is missing."]);
});

test("an error that is not the server's own, such as a proxy's page, has a message too", async () => {
  for (const body of ["<html>Bad gateway</html>", "null", "{}", '{"error": "text"}', '{"error": {}}']) {
    const { status, code, message } = await errorOf([502, body]);
    assert.deepEqual([status, code, message], [502, "unknown", "The server answered with an error (502). Try again."]);
  }
});

test("a response without content is null", async () => {
  fakeFetch({ "DELETE /x": [204, null] });
  assert.equal(await request("DELETE", "/x"), null);
});

test("a body is sent as JSON, and nothing is cached", async () => {
  const requests = fakeFetch({ "POST /x": {}, "GET /x": {} });
  await request("POST", "/x", { text: "é" }, { keepalive: true });
  await request("GET", "/x");
  assert.deepEqual(requests[0].headers, { "Content-Type": "application/json" });
  assert.equal(requests[0].body, '{"text":"é"}');
  assert.equal(requests[0].keepalive, true);
  assert.deepEqual(requests.map(({ cache }) => cache), ["no-store", "no-store"]);
  assert.equal(requests[1].body, undefined);
});

test("ids in paths are escaped", async () => {
  const requests = fakeFetch({ "DELETE /api/folders/..%2F%3Fa%23": {} });
  await api.deleteFolder("../?a#");
  assert.equal(requests.length, 1);
});

test("an ended session leads to the sign-in page and back to this address, other refusals do not", async () => {
  Object.assign(place, { pathname: "/desk", search: "?a=1&b", hash: "#usage" });
  await errorOf([401, { error: { code: "invalid_credentials", message: "No." } }]);
  await errorOf([403, { error: { code: "not_signed_in", message: "No." } }]);
  assert.deepEqual(place.went, []);
  await errorOf([401, { error: { code: "not_signed_in", message: "No." } }]);
  assert.deepEqual(place.went, ["/sign-in?next=%2Fdesk%3Fa%3D1%26b%23usage"]);
});

test("a query leaves out what is null or undefined, not what is false, zero or empty", () => {
  assert.equal(query({ a: null, b: undefined, c: false, d: 0, e: "", f: "x y&z" }), "c=false&d=0&e=&f=x+y%26z");
});

test("a query has each value of a list, and none of an empty one", () => {
  assert.equal(query({ flag: ["low_rated", "a&b"], none: [], state: "open" }), "flag=low_rated&flag=a%26b&state=open");
});

test("ids do not repeat", () => {
  const ids = new Set(Array.from({ length: 1000 }, randomId));
  assert.equal(ids.size, 1000);
  for (const id of ids) assert.match(id, /^[0-9a-f]+(-[0-9a-f]+){3}$/);
});

test("signing out that fails leaves the page as it was", async () => {
  fakeFetch({ "POST /api/account/sign-out": [500, {}] });
  await assert.rejects(signOut(), { name: "Error", status: 500 });
  raise("pageshow");
  assert.deepEqual([place.went, place.reloads], [[], 0]);
  await errorOf([401, { error: { code: "not_signed_in", message: "No." } }]);
  assert.deepEqual(place.went, ["/sign-in?next=%2F"]);
});

// The last test: from here on the page is signed out.
test("while the user signs out, other requests that are refused do not lead elsewhere", async () => {
  const refused = [401, { error: { code: "not_signed_in", message: "No." } }];
  fakeFetch({ "POST /api/account/sign-out-everywhere": refused, "GET /x": refused });
  const leaving = signOut({ everywhere: true });
  await assert.rejects(request("GET", "/x"), ApiError);
  await leaving;
  assert.deepEqual(place.went, ["/sign-in"]);
  raise("pageshow"); // the back button shows the page again
  assert.equal(place.reloads, 1);
});

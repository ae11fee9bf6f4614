"""Another website's page, open in the same browser, can neither send nor read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>another website</title>")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's output is its own."""


@pytest.fixture(params=["127.0.0.1", "localhost"])
def other_page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page of another website: the same machine under another port, and under another name."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{request.param}:{httpd.server_address[1]}/")
    yield page
    context.close()
    httpd.shutdown()
    httpd.server_close()


def test_cannot_send(other_page: Page, server: Server) -> None:
    before = _conversations(other_page, server)
    attempts = """async ([url, body]) => {
      const outcomes = [];
      for (const options of [
        {method: "POST", headers: {"Content-Type": "application/json"}, body},
        {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body},
        {method: "POST", mode: "no-cors", body: new URLSearchParams({text: "x"})},
        {method: "DELETE"},
      ]) {
        outcomes.push(await fetch(url + "/api/turns", options).then(r => r.type + r.status, () => "failed"));
      }
      const form = document.createElement("form");
      form.method = "POST"; form.enctype = "text/plain"; form.action = url + "/api/turns"; form.target = "sink";
      const field = document.createElement("input");
      field.name = '{"text":"forged by a form","x":"'; field.value = '"}';
      const frame = document.createElement("iframe"); frame.name = "sink";
      form.append(field); document.body.append(frame, form);
      const done = new Promise(resolve => frame.addEventListener("load", resolve));
      form.submit();
      await done;
      return outcomes;
    }"""
    outcomes = other_page.evaluate(attempts, [server.url, json.dumps({"text": "forged by a website"})])
    assert all(outcome in ("failed", "opaque0") for outcome in outcomes), outcomes
    assert _conversations(other_page, server) == before


def test_cannot_read(other_page: Page, server: Server) -> None:
    conversation = seed_conversation(server.data_dir, "a secret", ["tell nobody", "SECRET-WORDS"])
    attempts = """async ([url, id]) => {
      const heard = [];
      for (const path of ["/api/conversations", `/api/conversations/${id}`, "/v1/models", "/config", "/"]) {
        for (const mode of ["cors", "no-cors"]) {
          await fetch(url + path, {mode, credentials: "include"}).then(async r => heard.push(await r.text()), () => {});
        }
      }
      const source = new EventSource(`${url}/api/events?turn=${id}:0`);
      source.onmessage = source.onopen = event => heard.push("event " + event.data);
      const frame = document.createElement("iframe");
      frame.src = `${url}/?c=${id}`;
      const loaded = new Promise(resolve => { frame.onload = resolve; });
      document.body.append(frame);
      await loaded;
      const script = document.createElement("script");
      const ran = new Promise(resolve => { script.onload = () => resolve("ran"); script.onerror = () => resolve(""); });
      script.src = `${url}/api/conversations`;
      document.body.append(script);
      heard.push(await ran);
      source.close();
      return heard.filter(text => text !== "");
    }"""
    assert other_page.evaluate(attempts, [server.url, conversation]) == []
    framed = [frame for frame in other_page.frames if frame.url.startswith(server.url)]
    assert all("SECRET" not in frame.content() and "dm-app" not in frame.content() for frame in framed)


def _conversations(page: Page, server: Server) -> set[str]:
    """Those that there are, asked for by a program, which sends no origin."""
    listing = page.request.get(f"{server.url}/api/conversations?limit=200")
    return {item["id"] for item in listing.json()["items"]}

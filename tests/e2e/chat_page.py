"""The page as tests use it: what a person sees and does, by role and name where there is one."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

REPLY_MS = 60_000


def letters(text: str) -> str:
    """The letters and digits of a text, up to a dollar sign: one far below may make a formula of what is between them.
    A star that closes far below may turn a star above into emphasis.
    """
    return "".join(filter(str.isalnum, text.partition("$")[0]))


class ChatPage:
    """One tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, conversation_id: str | None = None) -> ChatPage:
        self.page.goto(f"{self.url}/?c={conversation_id}" if conversation_id else f"{self.url}/")
        return self.ready()

    def go(self, conversation_id: str | None) -> ChatPage:
        """Open a conversation, or a new chat, without loading the page again."""
        self.page.evaluate("id => window.deskmate.navigate(id)", conversation_id)
        return self

    def reload(self) -> ChatPage:
        self.page.reload()
        return self.ready()

    def ready(self) -> ChatPage:
        self.page.wait_for_selector("html.dm-ready", timeout=REPLY_MS)
        return self

    @property
    def conversation_id(self) -> str:
        self.page.wait_for_url("**/?c=*")
        return self.page.url.partition("?c=")[2]

    @property
    def box(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def alert(self) -> Locator:
        return self.page.locator("#dm-composer .dm-alert:not(.dm-draft-body *)")

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop", exact=True)

    @property
    def users(self) -> Locator:
        return self.page.locator(".dm-user .dm-text")

    @property
    def replies(self) -> Locator:
        return self.page.locator(".dm-reply")

    @property
    def titles(self) -> Locator:
        return self.page.locator(".dm-list .dm-row-title")

    def row(self, title: str) -> Locator:
        return self.page.locator(".dm-list .dm-row").filter(has_text=title)

    def press_in_row(self, title: str, entry: str) -> None:
        """Point at a conversation in the list, open its menu and choose an entry."""
        self.page.bring_to_front()
        row = self.row(title).first
        row.hover()
        row.get_by_title("More", exact=True).click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()

    def text(self, reply: int = -1) -> str:
        """The reply as it stands on the page."""
        return self.replies.nth(reply).locator(".dm-text").inner_text()

    def send(self, message: str) -> None:
        """Write and press Enter; returns when the server has the message."""
        self.page.bring_to_front()  # Chromium draws the others once a second
        expect(self.stop_button).to_be_hidden()  # while a reply is written, nothing is sent
        before = self.users.count()
        self.box.fill(message)
        self.box.press("Enter")
        expect(self.users).to_have_count(before + 1)
        expect(self.box).to_have_value("")

    def wait_for_text(self, characters: int, reply: int = -1) -> str:
        """Wait until the reply has at least this many characters, and return them."""
        self.page.bring_to_front()
        shown = self.page.wait_for_function(
            """([at, length]) => {
              const reply = [...document.querySelectorAll(".dm-reply")].at(at); // it may be drawn anew at any time
              const text = reply?.querySelector(".dm-text").innerText ?? "";
              return [...text].length >= length && text;
            }""",
            arg=[reply, characters],
            timeout=REPLY_MS,
        )
        return str(shown.json_value())

    def wait_for_end(self, reply: int = -1) -> str:
        """Wait until the reply is complete, and return its text."""
        expect(self.replies.nth(reply)).not_to_have_attribute("data-status", "streaming", timeout=REPLY_MS)
        return self.text(reply)

    def stop(self) -> str:
        """Press the stop button, and return what is kept."""
        self.page.bring_to_front()
        self.stop_button.click()
        return self.wait_for_end()

    def ask(self, message: str) -> str:
        self.send(message)
        return self.wait_for_end()

    def open_settings(self) -> None:
        toggle = self.page.locator(".dm-toggle-settings")
        if toggle.get_attribute("aria-expanded") == "false":
            toggle.click()
        expect(self.page.get_by_role("heading", name="Settings", exact=True)).to_be_visible()

    def set_number(self, label: str, value: str) -> None:
        """Type into a slider's or number's field, and leave it."""
        field = self.setting(label)
        field.fill(value)
        field.blur()

    def setting(self, label: str) -> Locator:
        slider = self.page.get_by_label(f"number input for {label}")
        return slider.or_(self.page.locator("#dm-settings").get_by_label(label, exact=True))

"""The tour of docs/tour.md, performed word for word.

Each clause of its steps has one function here, which does or checks what the clause says; labels and texts are those of
the document. A clause without a function fails the test, and so does a label that the page does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.chat_page import REPLY_MS, ChatPage
from tests.fork_server import ROOT

Perform = Callable[..., None]

_CLAUSES: dict[re.Pattern[str], Perform] = {}


def clause(text: str) -> Callable[[Perform], Perform]:
    """Registers what performs a clause. In ``text``, ``**_**``, ``*_*`` and ```_``` are passed on as arguments."""
    pattern = re.escape(text).replace(re.escape("`_`"), "`([^`]+)`")
    pattern = pattern.replace(re.escape("**_**"), r"\*\*([^*]+)\*\*").replace(re.escape("*_*"), r"\*([^*]+)\*")

    def register(perform: Perform) -> Perform:
        _CLAUSES[re.compile(rf"{pattern}(?:[.:]|, and|,)(?: |$)", re.IGNORECASE)] = perform
        return perform

    return register


@dataclass(frozen=True, slots=True)
class Clause:
    text: str
    perform: Perform
    arguments: tuple[str, ...]


def steps_of(page: str) -> list[str]:
    """The numbered steps of a page, each as one line; pictures between them are left out."""
    numbered = re.findall(r"^(\d+)\. (.+?)(?=\n\n|\n\d+\. |\Z)", page, re.DOTALL | re.MULTILINE)
    assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1))
    return [" ".join(text.split()) for _, text in numbered]


def clauses_of(step: str) -> list[Clause]:
    found = []
    while step:
        matches = [(match, perform) for pattern, perform in _CLAUSES.items() if (match := pattern.match(step))]
        assert len(matches) == 1, f"{len(matches)} functions perform the beginning of: {step}"
        match, perform = matches[0]
        found.append(Clause(match[0].strip(), perform, match.groups()))
        step = step[match.end() :]
    return found


class Tour:
    """A visitor on the tour, and what they remember of earlier steps."""

    def __init__(self, chat: ChatPage) -> None:
        self.chat = chat
        self.page: Page = chat.page
        self.facts_at_first = ""
        self.share_at_first = 0.0
        self.alternative = ""
        self.kept = ""

    @property
    def reply(self) -> Locator:
        return self.chat.replies.last

    @property
    def columns(self) -> Locator:
        return self.page.locator(".dm-column")

    @property
    def alternatives(self) -> Locator:
        return self.page.locator(".dm-lens-alternative")

    def facts(self) -> str:
        return self.page.locator(".dm-lens-facts").inner_text()

    def dialog(self, name: str) -> Locator:
        return self.page.get_by_role("dialog", name=name, exact=True)

    def column_of_dialog(self, letter: str) -> Locator:
        return self.dialog("Compare replies").get_by_role("group", name=letter, exact=True)

    def click(self, label: str, within: Locator | None = None) -> None:
        """Clicks the one button with this label; its accessible name may go on after a colon or a space."""
        if within is None:
            open_dialog = self.page.get_by_role("dialog")
            within = open_dialog.last if open_dialog.count() else self.page.locator("body")
        button = within.get_by_role("button", name=re.compile(rf"^{re.escape(label)}(?::|\s|$)"))
        expect(button).to_have_text(re.compile(rf"^\s*{re.escape(label)}(?::|\s|$)"))  # what one reads says so, too
        button.click()


def left_of(facts: str) -> int:
    """How many tokens the settings leave, of a line such as "… 2 of 3,072 tokens left."."""
    left = re.search(r"; ([\d,]+) of [\d,]+ tokens left", facts)
    assert left is not None, facts
    return int(left[1].replace(",", ""))


def share_of_likeliest(tour: Tour) -> float:
    share = re.search(r"→ ([\d.]+) %", tour.alternatives.first.inner_text())
    assert share is not None
    return float(share[1])


def without_numbers(text: str) -> str:
    return re.sub(r"\d[\d,.]*", "0", text)


@clause("Click **_**")
def _(tour: Tour, label: str) -> None:
    tour.click(label)


@clause("Press **_**")
def _(tour: Tour, key: str) -> None:
    tour.page.keyboard.press({"Esc": "Escape", "Ctrl+K": "Control+k"}.get(key, key))


@clause("Type `_`")
def _(tour: Tour, text: str) -> None:
    expect(tour.dialog("Find anything").get_by_role("combobox")).to_be_focused()
    tour.page.keyboard.type(text)


@clause("press **_** once *_* is found")
def _(tour: Tour, key: str, title: str) -> None:
    found = tour.dialog("Find anything").get_by_role("option", name=title, selected=True)
    expect(found).to_be_visible()
    tour.page.keyboard.press(key)


@clause("Click **_** in the new chat")
def _(tour: Tour, label: str) -> None:
    tour.click(label, tour.page.locator(".dm-welcome"))
    expect(tour.chat.users).to_have_text([label])


@clause("The reply streams in")
def _(tour: Tour) -> None:
    assert tour.chat.wait_for_end() != ""


@clause("the chat is listed under *_*")
def _(tour: Tour, day: str) -> None:
    first_of_list = tour.page.locator(".dm-list").get_by_role("listitem")
    expect(first_of_list.first).to_have_text(day)
    expect(first_of_list.nth(1).get_by_role("link")).to_have_attribute("href", re.compile(tour.chat.conversation_id))


@clause("Click **_** below the reply")
def _(tour: Tour, label: str) -> None:
    tour.click(label, tour.reply)


@clause("*_* stands above its tokens")
def _(tour: Tour, title: str) -> None:
    expect(tour.reply.get_by_text(title, exact=True)).to_be_visible()
    expect(tour.page.locator(".dm-lens-token").first).to_be_visible()


@clause("the stronger a token's underline and tint, the less likely it was")
def _(tour: Tour) -> None:
    look = """mark => {
      const style = getComputedStyle(mark);
      return [style.getPropertyValue("--dm-lens-line"), style.getPropertyValue("--dm-lens-tint")].map(parseFloat);
    }"""
    by_share: list[tuple[float, float, float]] = []
    for mark in tour.page.locator(".dm-lens-token").all():
        share = re.search(r": (?:under )?([\d.]+) %, ", mark.get_attribute("aria-label") or "")
        assert share is not None
        line, tint = mark.evaluate(look)
        by_share.append((float(share[1]), line, tint))
    by_share.sort(reverse=True)
    assert [line for _, line, _ in by_share] == sorted(line for _, line, _ in by_share)
    assert [tint for _, _, tint in by_share] == sorted(tint for _, _, tint in by_share)
    assert by_share[0][1:] != by_share[-1][1:], "all tokens look alike"


@clause("Click the first token")
def _(tour: Tour) -> None:
    tour.page.locator(".dm-lens-token").first.click()


@clause("Its alternatives appear as bars")
def _(tour: Tour) -> None:
    expect(tour.alternatives).to_have_count(20)
    expect(tour.alternatives.first.locator(".dm-lens-own")).to_be_visible()
    tour.facts_at_first, tour.share_at_first = tour.facts(), share_of_likeliest(tour)


@clause("each with its probability before and after the settings, or with the setting that removed it, such as *_*")
def _(tour: Tour, setting: str) -> None:
    words = tour.page.locator(".dm-lens-share").all_inner_texts()
    shares = [word for word in words if re.fullmatch(r"[\w. ]+ % → [\w. ]+ %", word)]
    removed = [word for word in words if re.fullmatch(rf"[\w. ]+ %, {re.escape(setting)}", word)]
    assert shares, words
    assert removed, words
    assert len(shares) + len(removed) == len(words)


@clause("Move the slider **_** to its left end")
def _(tour: Tour, label: str) -> None:
    tour.page.get_by_role("group", name="What if").get_by_role("slider", name=label, exact=True).press("Home")


@clause("Move the slider **_** to its right end")
def _(tour: Tour, label: str) -> None:
    tour.page.get_by_role("group", name="What if").get_by_role("slider", name=label, exact=True).press("End")


@clause("The bars change at once")
def _(tour: Tour) -> None:
    assert tour.facts() != tour.facts_at_first


@clause("*_* leaves one token")
def _(tour: Tour, setting: str) -> None:
    assert left_of(tour.facts()) == 1
    expect(tour.page.locator(".dm-lens-share").filter(has_text=setting)).to_have_count(19)


@clause("More tokens are left than at first")
def _(tour: Tour) -> None:
    assert left_of(tour.facts()) > left_of(tour.facts_at_first)


@clause("their probabilities lie closer together")
def _(tour: Tour) -> None:
    assert share_of_likeliest(tour) < tour.share_at_first


@clause("Click an alternative that was not chosen")
def _(tour: Tour) -> None:
    assert tour.facts() == tour.facts_at_first
    other = tour.alternatives.and_(tour.page.locator(":enabled")).first
    tour.alternative = other.locator(".dm-lens-word").inner_text()
    other.click()


@clause("The reply is written anew from there, as a version of its own: *_*")
def _(tour: Tour, versions: str) -> None:
    expect(tour.reply.locator(".dm-versions")).to_have_text(versions)
    assert tour.chat.wait_for_end().startswith(tour.alternative)


@clause("The arrows lead to the other version and back")
def _(tour: Tour) -> None:
    shown = tour.chat.text()
    tour.reply.get_by_role("button", name="Previous version").click()
    expect(tour.reply.locator(".dm-text")).not_to_have_text(shown, use_inner_text=True)
    assert not tour.chat.text().startswith(tour.alternative)
    tour.reply.get_by_role("button", name="Next version").click()
    expect(tour.reply.locator(".dm-text")).to_have_text(shown, use_inner_text=True)


@clause("type `_` as **_** of *_*")
def _(tour: Tour, value: str, label: str, column: str) -> None:
    tour.column_of_dialog(column).get_by_label(label, exact=True).fill(value)


@clause("leave *_* as **_** of *_*")
def _(tour: Tour, value: str, label: str, column: str) -> None:
    expect(tour.column_of_dialog(column).get_by_label(label, exact=True)).to_have_value(value)


@clause("Both replies stream side by side")
def _(tour: Tour) -> None:
    expect(tour.columns).to_have_count(2)


@clause("Once they are complete, the words in which they differ are marked")
def _(tour: Tour) -> None:
    expect(tour.columns.locator(".dm-keep").last).to_be_enabled(timeout=REPLY_MS)
    texts = tour.columns.locator(".dm-text").all_inner_texts()
    assert (tour.columns.locator(".dm-differs").count() > 0) == (texts[0] != texts[1])


@clause("Click **_** below *_*")
def _(tour: Tour, label: str, letter: str) -> None:
    column = tour.columns.filter(has=tour.page.get_by_role("heading", name=re.compile(rf"^{letter}\b")))
    tour.kept = column.locator(".dm-text").inner_text()
    tour.click(label, column)


@clause("It takes the reply's place")
def _(tour: Tour) -> None:
    expect(tour.columns).to_have_count(0)
    assert tour.chat.text() == tour.kept


@clause("the others stay as versions: *_*")
def _(tour: Tour, versions: str) -> None:
    expect(tour.reply.locator(".dm-versions")).to_have_text(versions)


@clause("The page says *_*")
def _(tour: Tour, text: str) -> None:
    expect(tour.page.locator("#dm-composer").get_by_text(re.compile(rf"^{re.escape(text)}\.$"))).to_be_visible()


@clause("the settings panel has *_* as *_*")
def _(tour: Tour, value: str, label: str) -> None:
    expect(tour.chat.setting(label)).to_have_value(value)


@clause("Click the small line below the reply, such as `_`")
def _(tour: Tour, example: str) -> None:
    line = tour.reply.locator(".dm-stats")
    assert without_numbers(line.inner_text()) == without_numbers(example)
    line.click()


@clause("*_* shows how long each phase of the reply took, from *_* to *_*")
def _(tour: Tour, title: str, first: str, last: str) -> None:
    phases = tour.dialog(title).get_by_role("rowheader")
    expect(phases.first).to_contain_text(first)
    expect(phases.last).to_contain_text(last)


@clause("Type `_` into the message box")
def _(tour: Tour, text: str) -> None:
    tour.chat.box.click()  # which closes what was open
    tour.page.keyboard.type(text)
    expect(tour.chat.box).to_have_value(text)


@clause("click **_** above it")
def _(tour: Tour, label: str) -> None:
    tour.click(label, tour.page.locator("#dm-composer"))


@clause("*_* counts the tokens of each part, such as *_*, *_* and *_*")
def _(tour: Tour, title: str, *parts: str) -> None:
    for part in parts:
        row = tour.dialog(title).get_by_role("row", name=re.compile(rf"^{re.escape(part)}\b"))
        expect(row.get_by_role("cell")).to_have_text(re.compile(r"^[1-9][\d,]*$"))


@clause("The prompt is shown as the model gets it, its special tokens in boxes")
def _(tour: Tour) -> None:
    dialog = tour.dialog("What the model reads")
    for text in (tour.chat.users.first.inner_text(), tour.chat.box.input_value()):
        expect(dialog.get_by_role("region", name="The prompt")).to_contain_text(text)
    expect(dialog.locator("mark.dm-special").first).to_be_visible()


@clause("The chat is open again, with the reply that you kept")
def _(tour: Tour) -> None:
    expect(tour.chat.users).to_have_count(1)
    assert tour.chat.text() == tour.kept


def test_the_tour_is_performed_word_for_word(guide_chat: ChatPage) -> None:
    steps = [clauses_of(step) for step in steps_of((ROOT / "docs" / "tour.md").read_text(encoding="utf-8"))]
    assert len(steps) >= 10
    tour = Tour(guide_chat)
    for number, clauses in enumerate(steps, 1):
        for each in clauses:
            try:
                each.perform(tour, *each.arguments)
            except Exception as error:
                error.add_note(f"at step {number} of docs/tour.md: {each.text}")
                raise


def test_a_step_that_no_function_performs_is_noticed() -> None:
    with pytest.raises(AssertionError, match="0 functions perform the beginning of: Then dance"):
        clauses_of("Click **Lens** below the reply. Then dance.")

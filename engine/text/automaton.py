"""Regular expressions as nondeterministic automata, which read text character by character in linear time.

Python's ``re`` backtracks: some expressions take exponential time, and none can go on with the text's next piece. These
automata (Thompson, "Regular Expression Search Algorithm", CACM 1968) take time in proportion to the text and to their
states, of which there are at most :data:`MAX_STATES`. They read the syntax of ``re``, except for what needs more than
states: backreferences, look-around, atomic groups and possessive repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from re import _parser  # type: ignore[attr-defined]  # the parser of the standard library has no public name
from typing import Any, Final, NoReturn

MAX_STATES: Final = 1024
"""States that read a character, in all expressions together, with repetition written out. More are refused."""
MAX_BRANCHES: Final = 4 * MAX_STATES
"""Branches and assertions, in the same way. They are walked at each character; those of most expressions are fewer."""


class Condition(Enum):
    """What an assertion asks of the characters before and after it."""

    START = auto()  #: nothing comes before
    LINE_START = auto()
    LINE_END = auto()
    WORD_BOUNDARY = auto()
    NO_WORD_BOUNDARY = auto()


class Read:
    """A state that reads a character that it accepts, and goes on to the next state."""

    __slots__ = ("accepts", "then")

    def __init__(self, accepts: Callable[[str], bool], then: State) -> None:
        self.accepts = accepts
        self.then = then


class Split:
    """A state that leads to several others without reading a character."""

    __slots__ = ("then",)

    def __init__(self, then: Sequence[State] = ()) -> None:
        self.then = then


class Assert:
    """A state that leads to the next one without reading a character, where a condition holds."""

    __slots__ = ("condition", "is_word", "then")

    def __init__(self, condition: Condition, is_word: Callable[[str], bool], then: State) -> None:
        self.condition = condition
        self.is_word = is_word
        self.then = then

    def holds(self, before: str, after: str | None) -> bool | None:
        """Returns whether the condition holds; None as long as that depends on the next character.

        Args:
            before: the character before; empty at the start of the text.
            after: the character after; empty at the end of the text, None if it is not known yet.
        """
        if self.condition is Condition.START:
            return not before
        if self.condition is Condition.LINE_START:
            return before in ("", "\n")
        if after is None:
            return None
        if self.condition is Condition.LINE_END:
            return after in ("", "\n")
        is_boundary = (before != "" and self.is_word(before)) is not (after != "" and self.is_word(after))
        return is_boundary is (self.condition is Condition.WORD_BOUNDARY)


class Match:
    """The end of an expression."""

    __slots__ = ("expression",)

    def __init__(self, expression: str) -> None:
        self.expression = expression


State = Read | Split | Assert | Match


def closure(
    states: Iterable[State], before: str, after: str | None = None, seen: set[State] | None = None
) -> Iterator[State]:
    """Yields the states that ``states`` reach without reading: reads, matches, and assertions not decided yet.

    Args:
        seen: states that are passed over; those reached are added.
    """
    seen = set() if seen is None else seen
    waiting = list(states)[::-1]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        if isinstance(state, Split):
            waiting += state.then[::-1]
        elif isinstance(state, Assert):
            holds = state.holds(before, after)
            if holds is None:
                yield state
            elif holds:
                waiting.append(state.then)
        else:
            yield state


class Automaton:
    """The states of several expressions.

    Args:
        start: the first state.
        looks_ahead: some assertions depend on the character that follows them.
    """

    def __init__(self, start: State, *, looks_ahead: bool) -> None:
        self.looks_ahead = looks_ahead
        self._start = start
        self._first: dict[str, tuple[State, ...]] = {}

    def first_states(self, before: str) -> tuple[State, ...]:
        """Returns the states in which a match can begin.

        Args:
            before: the character before it; empty at the start of the text.
        """
        kind = before if before in ("", "\n") else "x"  # no assertion tells others apart before it knows the next one
        states = self._first.get(kind)
        if states is None:
            states = self._first[kind] = tuple(closure([self._start], kind))
        return states


def compile_expressions(expressions: Sequence[str], strings: Sequence[str] = ()) -> Automaton:
    """Returns the automaton that matches each of the expressions, and each of the strings.

    Raises:
        ValueError: an expression is invalid, matches the empty text, or cannot be read in linear time; the message says
            which one, and where it is wrong.
    """
    builder = _Builder()
    starts: list[State] = []
    for string in strings:
        state: State = Match(string)
        for character in reversed(string):
            state = Read(character.__eq__, state)
        starts.append(state)
    for expression in expressions:
        try:
            parsed = _parser.parse(expression)
            if parsed.getwidth()[0] == 0:
                raise _Refused("it matches the empty text, and so would end every reply")
            starts.append(builder.sequence(parsed, Match(expression), parsed.state.flags))
        except re.error as error:
            place = "" if error.pos is None else f" at character {error.pos + 1}"
            raise ValueError(f"'{expression}' is no regular expression: {error.msg}{place}") from None
        except _Refused as refused:
            raise ValueError(f"'{expression}' cannot be used: {refused}") from None
        except (RecursionError, OverflowError):
            raise ValueError(f"'{expression}' cannot be used: it is nested too deep") from None
    return Automaton(Split(starts), looks_ahead=builder.looks_ahead)


class _Refused(Exception):
    """Says why an expression cannot be used."""


_UNSUPPORTED: Final = {
    "GROUPREF": "backreferences are not supported",
    "GROUPREF_EXISTS": "conditional groups are not supported",
    "ASSERT": "look-ahead and look-behind are not supported",
    "ASSERT_NOT": "look-ahead and look-behind are not supported",
    "FAILURE": "look-ahead and look-behind are not supported",
    "ATOMIC_GROUP": "atomic groups are not supported",
    "POSSESSIVE_REPEAT": "possessive repetition is not supported",
}


class _Builder:
    """Builds automata out of parsed expressions, from their ends to their starts."""

    def __init__(self) -> None:
        self.looks_ahead = False
        self._num_states = 0
        self._num_branches = 0

    def sequence(self, items: Iterable[tuple[Any, Any]], then: State, flags: int) -> State:
        for operator, operand in reversed(list(items)):
            then = self._item(str(operator), operand, then, flags)
        return then

    def _item(self, operator: str, operand: Any, then: State, flags: int) -> State:
        match operator:
            case "MAX_REPEAT" | "MIN_REPEAT":  # a reply ends with the shortest match in any case
                low, high, body = operand
                return self._repeat(low, high, body, then, flags)
            case "BRANCH":
                return self._split([self.sequence(alternative, then, flags) for alternative in operand[1]])
            case "SUBPATTERN":
                _group, added, removed, body = operand
                return self.sequence(body, then, (flags | added) & ~removed)
            case "AT":
                condition = _condition(str(operand), flags)
                self.looks_ahead |= condition not in (Condition.START, Condition.LINE_START)
                self._count_branches(1)
                return Assert(condition, _category("WORD", flags), then)
            case "ANY":
                return self._read(_anything if flags & re.DOTALL else "\n".__ne__, then)
            case "LITERAL" | "NOT_LITERAL" | "IN":
                return self._read(_char_class(operator, operand, flags), then)
        _refuse(_UNSUPPORTED.get(operator, f"{operator} is not supported"))

    def _repeat(self, low: int, high: int, body: Any, then: State, flags: int) -> State:
        if body.getwidth()[1] == 0:  # repeating what reads nothing changes nothing
            return self.sequence(body, then, flags) if low else then
        if high is _parser.MAXREPEAT:
            loop = self._split(())
            loop.then = [self.sequence(body, loop, flags), then]
            entry: State = loop
        else:
            entry = then
            for _ in range(high - low):
                entry = self._split([self.sequence(body, entry, flags), then])
        for _ in range(low):
            entry = self.sequence(body, entry, flags)
        return entry

    def _read(self, accepts: Callable[[str], bool], then: State) -> Read:
        self._num_states += 1
        if self._num_states > MAX_STATES:
            _refuse(f"it is too large: with its repetition written out it reads more than {MAX_STATES} characters")
        return Read(accepts, then)

    def _split(self, then: Sequence[State]) -> Split:
        self._count_branches(max(len(then), 2))  # a loop's two follow later
        return Split(then)

    def _count_branches(self, number: int) -> None:
        self._num_branches += number
        if self._num_branches > MAX_BRANCHES:
            _refuse(f"it is too large: with its repetition written out it has more than {MAX_BRANCHES} branches")


def _refuse(reason: str) -> NoReturn:
    raise _Refused(reason)


def _condition(name: str, flags: int) -> Condition:
    match name:
        case "AT_BEGINNING":
            return Condition.LINE_START if flags & re.MULTILINE else Condition.START
        case "AT_BEGINNING_STRING":
            return Condition.START
        case "AT_BOUNDARY":
            return Condition.WORD_BOUNDARY
        case "AT_NON_BOUNDARY":
            return Condition.NO_WORD_BOUNDARY
        case "AT_END" if flags & re.MULTILINE:
            return Condition.LINE_END
    _refuse("the end of the text is not known while a reply is written. For the end of a line, begin with (?m)")


def _char_class(operator: str, operand: Any, flags: int) -> Callable[[str], bool]:
    """Returns what decides whether a character belongs to a literal, or to a class in brackets."""
    items = operand if operator == "IN" else [(_parser.LITERAL, operand)]
    is_negated = operator == "NOT_LITERAL" or str(items[0][0]) == "NEGATE"
    tests = [_member(str(name), value, flags) for name, value in items if str(name) != "NEGATE"]
    if len(tests) == 1 and not is_negated and not flags & re.IGNORECASE:
        return tests[0]
    cases = _cases if flags & re.IGNORECASE else _itself

    def accepts(character: str) -> bool:
        return any(test(one) for one in cases(character, flags) for test in tests) is not is_negated

    return accepts


def _member(name: str, value: Any, flags: int) -> Callable[[str], bool]:
    if name == "LITERAL":
        return chr(value).__eq__ if not flags & re.IGNORECASE else set(_cases(chr(value), flags)).__contains__
    if name == "RANGE":
        low, high = map(chr, value)
        return lambda character: low <= character <= high
    category = str(value).removeprefix("CATEGORY_")
    test = _category(category.removeprefix("NOT_"), flags)
    return (lambda character: not test(character)) if category.startswith("NOT_") else test


def _category(name: str, flags: int) -> Callable[[str], bool]:
    test = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}[name]
    if not flags & re.ASCII:
        return test
    if name == "SPACE":
        return " \t\n\r\f\v".__contains__
    return lambda character: character.isascii() and test(character)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _anything(_character: str) -> bool:
    return True


def _itself(character: str, _flags: int) -> tuple[str, ...]:
    return (character,)


def _cases(character: str, flags: int) -> tuple[str, ...]:
    """Returns the spellings of a character that differ in case only."""
    if flags & re.ASCII and not character.isascii():
        return (character,)
    lower, upper = character.lower(), character.upper()
    cases = {character, lower, upper, upper.lower(), lower.upper()}
    return tuple(one for one in cases if len(one) == 1 and (one.isascii() or not flags & re.ASCII))

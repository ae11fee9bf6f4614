"""Random JSON schemas, and grammars over a vocabulary of bytes to judge texts by, however a model's tokens cut them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import InvalidRequestError, StructuredOutput
from engine.sampling.grammar import Grammar
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.ll_tokenizer import make_ll_tokenizer

EOS = 256
"""The end of a reply in the vocabulary of bytes."""
_PATTERNS = ("^[a-c]{1,3}-[0-9]{2}$", "^(yes|no)( [a-z]{2})?$", "^x+y?$", '^["\\\\]{1,2}é$')
_CONSTANTS = (None, True, 3, -1.5, "", "on", 'a "b"', "ü\n", [1, "x"], {"k": [None]})
_CLOSING = [ord(character) for character in '"}]0123456789,: aenlty']


def bytes_compiler() -> GrammarCompiler:
    """Returns a compiler for a vocabulary of the 256 bytes and an end."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>"]
    return GrammarCompiler(
        lambda: make_ll_tokenizer(tokens, [EOS], [EOS], lambda text: list(text.encode())), len(tokens)
    )


class TextJudge:
    """Judges whole texts by a structure, each from its beginning.

    Args:
        compiler: made by :func:`bytes_compiler`.
    """

    def __init__(self, compiler: GrammarCompiler, structure: StructuredOutput) -> None:
        self._grammar: Grammar = compiler.compile(structure)

    def allows(self, text: bytes) -> bool:
        """Whether the text is the beginning of one that the structure allows."""
        try:
            self._grammar.start("text", text)
        except InvalidRequestError:
            return False
        return True

    def is_whole(self, text: bytes) -> bool:
        """Whether the structure allows the text as it is."""
        return self.allows(text) and EOS in self._following(text)

    def is_dictated(self, text: bytes) -> bool:
        """Whether the text must go on, and with one certain byte."""
        following = self._following(text)
        return len(following) == 1 and EOS not in following

    def complete(self, text: bytes, noise: Random, max_bytes: int = 4000) -> bytes | None:
        """Returns a whole text that begins with this one, soon closed; None if it has not ended by then."""
        matcher = self._grammar.start("text", text)
        written = bytearray(text)
        for _ in range(max_bytes):
            following = _allowed(matcher.banned(written, len(text)))
            if EOS in following:
                return bytes(written)
            # Numbers, strings and lists end soon, but none is closed too early to be one.
            closing = [byte for byte in _CLOSING if byte in following]
            written.append(closing[0] if closing and noise.random() < 0.8 else noise.choice(sorted(following)))
        return None

    def _following(self, text: bytes) -> set[int]:
        return _allowed(self._grammar.start("text", text).banned(text, len(text)))


def _allowed(banned: NDArray[np.int64]) -> set[int]:
    return set(range(EOS + 1)).difference(banned.tolist())


def random_schema(noise: Random) -> dict[str, Any]:
    """Returns a schema that some text matches, of the keywords that replies can be held to, with one that recurs."""
    node = {
        "type": "object",
        "properties": {"value": _leaf(noise), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["next"] if noise.random() < 0.5 else [],
        "additionalProperties": False,
    }
    return {**_schema(noise, 3), "$defs": {"node": node}}


def _schema(noise: Random, depth: int) -> dict[str, Any]:
    if not depth or noise.random() < 0.3:
        return _leaf(noise)
    kind = noise.choice(("object", "object", "array", "tuple", "any", "ref"))
    if kind == "object":
        names = noise.sample(("a", "b b", 'q"', "é", "longer_name"), noise.randint(0, 3))
        return {
            "type": "object",
            "properties": {name: _schema(noise, depth - 1) for name in names},
            "required": [name for name in names if noise.random() < 0.6],
            "additionalProperties": noise.choice((False, False, {"type": "integer", "minimum": 0, "maximum": 99})),
        }
    if kind == "array":
        fewest = noise.randint(0, 2)
        return {"type": "array", "items": _schema(noise, depth - 1), "minItems": fewest, "maxItems": fewest + 2}
    if kind == "tuple":
        items = [_schema(noise, depth - 1) for _ in range(noise.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": noise.randint(0, len(items))}
    if kind == "any":
        return {"anyOf": [_schema(noise, depth - 1) for _ in range(noise.randint(1, 3))]}
    return {"$ref": "#/$defs/node"}


def _leaf(noise: Random) -> dict[str, Any]:
    kind = noise.choice(("integer", "number", "string", "pattern", "enum", "const", "boolean", "types"))
    low = noise.randint(-200, 200)
    high = low + noise.randint(2, 300)
    if kind == "integer":
        bounds = {"minimum": low, noise.choice(("maximum", "exclusiveMaximum")): high}
        return {"type": "integer", **({} if noise.random() < 0.2 else bounds)}
    if kind == "number":
        return {"type": "number", noise.choice(("minimum", "exclusiveMinimum")): low / 4, "maximum": high / 4}
    if kind == "string":
        fewest = noise.randint(0, 3)
        return {"type": "string", "minLength": fewest, **({"maxLength": fewest + 4} if noise.random() < 0.8 else {})}
    if kind == "pattern":
        return {"type": "string", "pattern": noise.choice(_PATTERNS)}
    if kind == "enum":
        return {"enum": noise.sample(_CONSTANTS, noise.randint(1, 4))}
    if kind == "const":
        return {"const": noise.choice(_CONSTANTS)}
    return {"type": "boolean"} if kind == "boolean" else {"type": ["null", "integer"]}

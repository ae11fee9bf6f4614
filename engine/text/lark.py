"""Writes grammars in Lark as llguidance reads it.

``suffix`` ends a text at its first occurrence, ``%json`` is a JSON schema, ``<[5]>`` a special token by its id. See
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.structured_output import json_spacing
from engine.text.schema_bounds import narrow_bounds

ANY_TEXT = "/(?s:.*)/"
"""Regular expression of any text, line breaks included."""


class LarkWriter:
    """Writes parts of a grammar, and collects the rules that they need.

    Args:
        special_tokens: ids of special tokens by their names, which no text matches.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self.special_tokens = special_tokens
        self._num_rules = 0

    def json(self, schema: Mapping[str, Any]) -> str:
        """Writes a value of a JSON schema."""
        spaced = {**narrow_bounds(schema), "x-guidance": json_spacing()}
        return self.rule(f"%json {json.dumps(spaced, ensure_ascii=False)}")

    def until(self, text: str) -> str:
        """Writes any text that ends with the first occurrence of this one."""
        if text in self.special_tokens:
            return f"{self.rule(ANY_TEXT)} {self.text(text)}"
        self._num_rules += 1
        name = f"until_{self._num_rules}"
        self.rules.append(f"{name}[suffix={json.dumps(text, ensure_ascii=False)}]: {ANY_TEXT}")
        return name

    def text(self, text: str) -> str:
        """Writes a text, special tokens by their ids."""
        if not text:
            return ""
        token = self.special_tokens.get(text)
        if token is not None:
            return f"<[{token}]>"
        for name in self.special_tokens:
            before, found, after = text.partition(name)
            if found:
                return f"{self.text(before)} {self.text(name)} {self.text(after)}".strip()
        return json.dumps(text, ensure_ascii=False)

    def rule(self, definition: str) -> str:
        """Gives a definition a name, and returns it."""
        name = self.reserve()
        self.define(name, definition)
        return name

    def reserve(self) -> str:
        """Returns the name of a rule that is defined later, with :meth:`define`: rules may refer to themselves."""
        self._num_rules += 1
        return f"rule_{self._num_rules}"

    def define(self, name: str, definition: str) -> None:
        """Defines a rule."""
        self.rules.append(f"{name}: {definition}")

    def terminal(self, definition: str) -> str:
        """Gives a regular expression a name, and returns it. It may be made of others with ``&``, ``|`` and ``~``."""
        self._num_rules += 1
        name = f"TERMINAL_{self._num_rules}"
        self.rules.append(f"{name}: {definition}")
        return name

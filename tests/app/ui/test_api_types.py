"""The types that the pages' scripts are checked against are those of the server."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "api_types.py"


@pytest.fixture(scope="module")
def api_types() -> ModuleType:
    spec = spec_from_file_location("api_types", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_types_are_those_of_the_models(api_types: ModuleType) -> None:
    assert api_types.FILE.read_text(encoding="utf-8") == api_types.api_types_text(), "run: make docs"


def test_responses_have_every_field_and_requests_may_leave_out_what_has_a_default(api_types: ModuleType) -> None:
    types = dict(
        re.findall(r"^export interface (\w+) \{\n(.*?)^\}", api_types.api_types_text(), re.DOTALL | re.MULTILINE)
    )
    assert "  streaming: boolean;\n" in types["ConversationSummary"]
    assert "  message_id: string | null;\n" in types["ConversationSummary"]
    assert "  text: string;\n" in types["StartTurn"]
    assert "  conversation_id?: string | null;\n" in types["StartTurn"]
    assert "  items: ConversationSummary[];\n" in types["ConversationSummaryPage"]
    assert "sampled_at" not in types["TurnText"]


def test_a_keyword_without_a_translation_is_not_guessed_at(api_types: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="TypeScript"):
        api_types._type({"oneOf": [{"type": "string"}]})

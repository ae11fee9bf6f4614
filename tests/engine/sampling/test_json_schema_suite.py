"""The JSON Schema Test Suite: which schemas are refused, and which instances the grammars of the others judge wrongly.

What is known stands in ``json_schema_suite.json``, from which the table in ``docs/api.md`` is made. Where something
changes, the test writes what it found beside the suite, to be read and copied over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import pytest

from engine import InvalidRequestError, StructuredOutput, StructureKind
from testing.grammars import TextJudge, bytes_compiler

SUITE = Path(__file__).parents[3] / "build" / "json-schema-suite"
KNOWN = Path(__file__).with_name("json_schema_suite.json")
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
UNSATISFIABLE = re.compile("no text can match it|schema is false")


def spellings(value: Any) -> Iterator[Any]:
    """Yields a value with its keys in different orders: a grammar holds them to one."""
    if isinstance(value, dict):
        values = [list(islice(spellings(one), 24)) for one in value.values()]
        for order in islice(permutations(range(len(value))), 24):
            for spelled in islice(product(*values), 50):
                yield {list(value)[index]: spelled[index] for index in order}
    elif isinstance(value, list):
        yield from map(list, islice(product(*(list(islice(spellings(one), 24)) for one in value)), 200))
    else:
        yield value


def allows(judge: TextJudge, value: Any) -> bool:
    """Whether a reply may be this value, as ``json.dumps`` writes it."""
    texts = (json.dumps(one, ensure_ascii=False).encode("utf-8", "surrogatepass") for one in spellings(value))
    return any(judge.is_whole(text) for text in islice(texts, 500))


def check_refusal(message: str, schema: Any) -> None:
    """Fails unless a refusal is one sentence that names something in the schema, or says that nothing can match."""
    assert "\n" not in message
    reason = message.partition("JSON schema that cannot be used: ")[2]
    words = [word for word in re.findall(r"[\w$.:-]+", json.dumps(schema)) if len(word) > 1]
    refers_to_dialect = json.dumps(schema).count("json-schema.org/draft") > 1  # the reason is in the schema of schemas
    assert refers_to_dialect or UNSATISFIABLE.search(reason) or any(word in reason for word in words), message


def judge(files: list[Path], dialect: str) -> dict[str, Any]:
    """Returns how the compiler takes the suite's schemas, and their grammars the instances."""
    compiler = bytes_compiler()
    counts, refused = Counter[str](), Counter[str]()
    wrong: dict[bool, list[str]] = {True: [], False: []}
    for file in files:
        for case in json.loads(file.read_text("utf-8")):
            schema, tests = case["schema"], case["tests"]
            if isinstance(schema, dict):
                schema = {"$schema": dialect, **schema}
            try:
                text_judge = TextJudge(compiler, StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema)))
            except InvalidRequestError as error:
                check_refusal(str(error), schema)
                is_impossible = UNSATISFIABLE.search(str(error)) and not any(test["valid"] for test in tests)
                refused["(no text can match it)" if is_impossible else file.stem] += 1
                continue
            counts["accepted"] += 1
            for test in tests:
                is_allowed = allows(text_judge, test["data"])
                if is_allowed == test["valid"]:
                    counts["right"] += 1
                else:
                    wrong[is_allowed].append(f"{file.stem}: {case['description']}: {test['description']}")
    return {
        **counts,
        "refused": dict(sorted(refused.items())),
        "wrongly allowed": sorted(wrong[True]),
        "wrongly banned": sorted(wrong[False]),
    }


@pytest.mark.full
def test_the_suite_is_judged_as_it_is_known() -> None:
    if not (SUITE / "installed.txt").exists():
        pytest.skip("scripts/json_schema_suite.sh (part of make test-full) gets the suite")
    found = {}
    for draft, dialect in DRAFTS.items():
        folder = SUITE / "tests" / draft
        found[draft] = judge(sorted(folder.glob("*.json")), dialect)
        found[f"{draft}, optional"] = judge(sorted(folder.glob("optional/**/*.json")), dialect)
    written = SUITE / "found.json"
    written.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(KNOWN.read_text("utf-8")), f"see {written}"


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_required_instance_is_wrongly_allowed(draft: str) -> None:
    """Such a one would let a reply through that its schema forbids: the keyword must be refused instead."""
    assert json.loads(KNOWN.read_text("utf-8"))[draft]["wrongly allowed"] == []

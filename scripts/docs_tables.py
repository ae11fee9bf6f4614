"""Writes docs/sampling.md and the tables of the other pages in docs/ from the code they describe.

Run by ``make docs``. To fail if one of them is out of date: .venv/bin/python scripts/docs_tables.py --check
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer.main
from pydantic_settings import BaseSettings
from typer.core import TyperGroup

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from app.api.request_middleware import HttpMetrics  # noqa: E402
from app.cli.flags import flag_name, variable_name  # noqa: E402
from app.cli.main import cli  # noqa: E402
from app.main import create_app  # noqa: E402
from app.settings import AppSettings  # noqa: E402
from benchmarks import documented, documented_recall  # noqa: E402
from engine import PARAMETERS, Engine, EngineSettings, EngineStats  # noqa: E402
from engine.remote.dialects import DIALECTS, Dialect, TokenizeApi  # noqa: E402
from engine.remote.metrics import RemoteMetrics  # noqa: E402
from scripts.components_page import components_reference  # noqa: E402
from scripts.markdown_table import markdown_table  # noqa: E402
from scripts.sampling_page import sampling_page  # noqa: E402

DOCS = ROOT / "docs"


def settings_table(settings: type[BaseSettings]) -> str:
    rows = []
    for name, field in settings.model_fields.items():
        flag = flag_name(name)
        default = "" if field.default in (None, ()) else f"`{field.default}`"
        if field.annotation is bool:
            flag, default = f"{flag}`, `--no-{flag[2:]}", default.lower()
        rows.append((f"`{variable_name(settings, name)}`", f"`{flag}`", default, field.description or ""))
    return markdown_table(("Variable", "Flag", "Default", "Meaning"), rows)


def routes_table() -> str:
    paths = create_app(AppSettings(), Engine(EngineSettings())).openapi()["paths"]
    return markdown_table(
        ("Route", "What it does"),
        (
            (f"`{method.upper()} {path}`", _first_paragraph(operation.get("description", "")))
            for path, operations in paths.items()
            for method, operation in operations.items()
        ),
    )


def metrics_table() -> str:
    # A remote engine has all metrics of a local one, and more.
    registries = (RemoteMetrics(EngineStats.nothing, tuple).registry, HttpMetrics().registry)
    metrics = sorted((metric for one in registries for metric in one.collect()), key=lambda metric: metric.name)
    return markdown_table(
        ("Metric", "Kind", "What it says"),
        (
            (f"`{metric.name}{'_total' * (metric.type == 'counter')}`", metric.type, metric.documentation)
            for metric in metrics
        ),
    )


def commands_table() -> str:
    return markdown_table(("Command", "What it does"), _commands(typer.main.get_command(cli), "deskmate"))


def parameters_text() -> str:
    """Returns the names of the sampling parameters, by their origin."""
    names: dict[str, list[str]] = {"openai": [], "vllm": [], "deskmate": []}
    for name, parameter in PARAMETERS.items():
        origin = next(engine for engine in names if parameter.spelling(engine) is not None)
        names[origin].append(f"`{name}`")
    texts = {origin: ", ".join(own) for origin, own in names.items()}
    own_names = f"{', '.join(names['deskmate'][:-1])} and {names['deskmate'][-1]}"
    text = (
        f"The API takes OpenAI's sampling parameters ({texts['openai']}), vLLM's additional ones under the same names "
        f"({texts['vllm']}), and {own_names}. [Sampling parameters](sampling.md) says what each of them takes "
        "and does."
    )
    return "\n".join(textwrap.wrap(text, 125, break_on_hyphens=False))


#: What the tests in tests/clients do with each client, by the package's name at PyPI or npm.
CLIENTS = {
    "openai": "chat, completions, responses: every parameter, streaming helpers, tool calls, `parse` with a schema",
    "openai (npm)": "tools that it runs itself, streamed calls, streamed text; responses, stored and continued",
    "langchain-openai": "agents that call a tool (chat, responses); a streamed call by name; an object by a schema",
    "pydantic-ai-slim": "agents with a tool and an output type (chat, responses), streamed, thoughts; native output",
    "instructor": "a typed object, whole and in parts, by a tool and by a schema",
    "ai (npm)": "an agent that calls a tool, whole and streamed, with its thoughts",
    "@ai-sdk/openai-compatible (npm)": "its provider",
    "lm-eval": "`local-completions` (log-probabilities of choices) and `local-chat-completions`",
    "guidellm": "a load of concurrent streams",
}


def clients_table() -> str:
    npm = json.loads((ROOT / "tests/clients/node/package.json").read_text("utf-8"))["dependencies"]
    locks = [ROOT / "requirements-test.txt", ROOT / "tests/clients/requirements-clients.txt"]
    pypi = dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ]+)", "".join(lock.read_text("utf-8") for lock in reversed(locks))))
    return markdown_table(
        ("Client", "Version", "Task"),
        (
            (f"`{name}`", npm[name.removesuffix(" (npm)")] if name.endswith(" (npm)") else pypi[name], task)
            for name, task in CLIENTS.items()
        ),
    )


def schema_suite_table() -> str:
    known = json.loads((ROOT / "tests/engine/sampling/json_schema_suite.json").read_text("utf-8"))
    titles = {"draft2020-12": "2020-12", "draft7": "7"}
    return markdown_table(
        ("Draft", "Schemas", "Accepted", "Refused", "Instances", "Judged rightly", "Wrongly allowed", "Wrongly banned"),
        (
            (
                ", ".join(titles.get(part, part) for part in draft.split(", ")),
                str(row["accepted"] + sum(row["refused"].values())),
                str(row["accepted"]),
                str(sum(row["refused"].values())),
                str(row["right"] + len(row["wrongly allowed"]) + len(row["wrongly banned"])),
                str(row["right"]),
                str(len(row["wrongly allowed"])),
                str(len(row["wrongly banned"])),
            )
            for draft, row in known.items()
        ),
    )


def servers_table() -> str:
    openai = {name for name, parameter in PARAMETERS.items() if parameter.spelling("openai") is not None}

    def parameters(kind: str) -> str:
        known = {name: None for name, parameter in PARAMETERS.items() if parameter.spelling(kind) is not None}
        # Log-probabilities of the prompt cannot be asked of a model server.
        more = ", ".join([f"`{name}`" for name in known if name not in openai and name != "prompt_logprobs"]) or "none"
        fewer = ", ".join([f"`{name}`" for name in PARAMETERS if name in openai and name not in known])
        return f"{more}; not {fewer}" if fewer else more

    def yes(flag: bool) -> str:
        return "yes" if flag else "no"

    def thinking(dialect: Dialect) -> str:
        controls = {
            "on and off": dialect.template_kwargs,
            "effort": dialect.reasoning_effort or dialect.template_kwargs,
            "budget": bool(dialect.thinking_budget),
        }
        return ", ".join(name for name, has in controls.items() if has) or "as the server is set"

    return markdown_table(
        (
            "Server",
            "Counts tokens before a reply",
            "Continues a reply",
            "Returns token ids",
            "Thinking",
            "Parameters besides OpenAI's",
        ),
        (
            (
                "others" if kind == "openai" else dialect.title,
                yes(dialect.tokenize_api is not TokenizeApi.NONE),
                yes(dialect.continuation is not None),
                yes(dialect.token_ids),
                thinking(dialect),
                parameters(kind),
            )
            for kind, dialect in DIALECTS.items()
        ),
    )


def _commands(command: Any, name: str) -> Iterable[tuple[str, str]]:
    if isinstance(command, TyperGroup):
        for child in command.commands.values():
            yield from _commands(child, f"{name} {child.name}")
        return
    settings = {flag_name(field) for cls in (AppSettings, EngineSettings) for field in cls.model_fields}
    own = [
        parameter.opts[0] if parameter.param_type_name == "option" else str(parameter.metavar or parameter.name)
        for parameter in command.params
        if parameter.opts[0] not in settings
    ]
    yield f"`{' '.join([name, *own])}`", _first_paragraph(command.help or "")


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split()).replace("``", "`")


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "api.md": {
        "sampling parameters": parameters_text,
        "clients": clients_table,
        "schema suite": schema_suite_table,
        "routes": routes_table,
    },
    "benchmarks.md": {**documented.TABLES, **documented_recall.TABLES},
    "components.md": {"components": components_reference},
    "configuration.md": {
        "application settings": lambda: settings_table(AppSettings),
        "engine settings": lambda: settings_table(EngineSettings),
        "commands": commands_table,
    },
    "metrics.md": {"metrics": metrics_table},
    "scaling.md": {"model servers": servers_table},
}
"""What is written from the code, by page in docs/ and by name."""


def with_tables(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Returns a page with every table between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` regenerated.

    Raises:
        ValueError: a table's markers are missing.
    """
    for name, build in tables.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        place = re.compile(f"{begin}.*?{end}", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"The page has no place for the table of {name}: {begin} ... {end}")
        table = build()
        page = place.sub(lambda _: f"{begin}\n{table}\n{end}", page)  # noqa: B023 - used at once
    return page


def pages() -> dict[Path, str]:
    """Returns each page's text as the code makes it."""
    written = {DOCS / name: with_tables((DOCS / name).read_text("utf-8"), tables) for name, tables in TABLES.items()}
    return {**written, DOCS / "sampling.md": sampling_page()}


def main() -> None:
    for page, wanted in pages().items():
        if "--check" not in sys.argv[1:]:
            page.write_text(wanted, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{page.name} is out of date: run make docs.")


if __name__ == "__main__":
    main()

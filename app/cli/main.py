"""The ``deskmate`` command line: servers, offline runs, models, the database, users, export and import.

Expected errors end with one sentence on stderr and exit code 2, never with a traceback.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.db import db
from app.cli.flags import read_settings, warn_of_lost_settings, with_flags
from app.cli.kb import kb
from app.cli.model import model
from app.cli.tool import tool
from app.cli.user import user
from app.errors import AppError
from app.settings import AppSettings
from engine import EngineError, EngineSettings

cli = typer.Typer(
    name="deskmate",
    help="A chat application with its own inference engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.add_typer(db, name="db")
cli.add_typer(kb, name="kb")
cli.add_typer(model, name="model")
cli.add_typer(tool, name="tool")
cli.add_typer(user, name="user")


def _print_version(wanted: bool) -> None:
    if wanted:
        from app.cli.version import describe_version

        typer.echo(f"deskmate {describe_version()}")
        raise typer.Exit


@cli.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


_WHOSE = typer.Option(
    "--user", metavar="NAME", help="With accounts: the user whose conversations to use, by the name to sign in with."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program. ``arguments``: None reads them from ``sys.argv``."""
    warn_of_lost_settings.cache_clear()
    try:
        cli(arguments)
    except (AppError, EngineError) as error:
        _fail(str(error))
    except MemoryError:
        _fail("There is not enough memory. Lower --max-model-len or --kv-cache-memory, or choose a smaller model.")
    except KeyboardInterrupt:
        sys.exit(130)  # the shells' exit status for SIGINT
    except asyncio.CancelledError:
        sys.exit(143)  # for SIGTERM


def _fail(message: str) -> None:
    typer.echo(f"deskmate: {' '.join(message.split())}", err=True)
    sys.exit(2)


@cli.command()
@with_flags(AppSettings, EngineSettings)
def serve(**flags: str | bool | None) -> None:
    """Start the server: load the model, unless it runs elsewhere, and serve the page and the APIs until stopped."""
    settings = read_settings(AppSettings, flags)
    engine_settings = read_settings(EngineSettings, flags)

    from app.server.logs import configure_logging
    from app.server.serving import address_of, bind, require_loopback
    from app.server.serving import serve as serve_until_stopped
    from app.store.maintenance.migrate import migrate
    from app.store.maintenance.process_lock import claim_database

    configure_logging(settings.log_level)
    require_loopback(settings.host, accounts=settings.accounts)
    with bind(settings.host, settings.port) as listener:
        with claim_database(settings.resolved_database_url):
            migrate(settings.resolved_database_url)

        from app.cli.console import StageProgress
        from app.cli.engines import make_engine, with_found_model

        with StageProgress() as progress:

            def ready(setup: str | None) -> None:
                progress.stop()
                address = settings.public_url or address_of(listener)
                typer.echo(f"Deskmate is ready at {address}")
                if setup is not None:
                    typer.echo(f"There is no admin yet. Create the first one within a day at {address}{setup}")

            def loading() -> None:
                progress.note(f"The page is at {settings.public_url or address_of(listener)} while the model loads.")

            engine = make_engine(with_found_model(settings, engine_settings, progress), progress)
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_until_stopped(settings, engine, listener, ready, loading))


@cli.command()
@with_flags(EngineSettings)
def run(
    input: Annotated[
        Path,
        typer.Option(
            "--input", metavar="FILE", help="Requests, one a line: OpenAI's batch format, or a body of /v1 alone."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Replies, one a line; an unfinished file is continued.")
    ],
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            min=1,
            help="Requests in flight. Default: the engine's --max-num-seqs.",
            metavar="NUMBER",
        ),
    ] = None,
    **flags: str | bool | None,
) -> None:
    """Reply to every request of a file, without a server. Run again, it goes on where it stopped."""
    from app.cli.run import run as run_batch

    app, engine = read_settings(AppSettings, flags), read_settings(EngineSettings, flags)
    sys.exit(run_batch(app, engine, input, output, max_concurrency))


@cli.command()
@with_flags(EngineSettings)
def chat(
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = "",
    once: Annotated[str | None, typer.Option("--once", metavar="TEXT", help="Reply to this message and exit.")] = None,
    **flags: str | bool | None,
) -> None:
    """Chat in the terminal, without a server. Text that is piped in gets one reply: `echo Hello | deskmate chat`."""
    from app.cli.chat import chat as converse

    converse(read_settings(AppSettings, flags), read_settings(EngineSettings, flags), system, once)


@cli.command("export")
@with_flags(AppSettings)
def export_conversations(
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="The file to write, or - for the standard output.")
    ] = None,
    format: Annotated[
        Literal["json", "markdown"],
        typer.Option("--format", help="json can be imported again; markdown is an archive for reading."),
    ] = "json",
    user: Annotated[str | None, _WHOSE] = None,
    **flags: str | bool | None,
) -> None:
    """Export every conversation to a file: a JSON document, or an archive of Markdown. The server may be running."""
    from app.cli.transfer import export_to

    asyncio.run(export_to(read_settings(AppSettings, flags), to, format, user))


@cli.command("import")
@with_flags(AppSettings)
def import_conversations(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export of a chat application.")],
    user: Annotated[str | None, _WHOSE] = None,
    **flags: str | bool | None,
) -> None:
    """Import the conversations in a file: Deskmate's own JSON, ChatGPT's or Open WebUI's export, ShareGPT."""
    from app.cli.transfer import import_from

    typer.echo(asyncio.run(import_from(read_settings(AppSettings, flags), file, user)))


@cli.command()
def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder with safetensors, or a hub id.")],
    to: Annotated[Literal["int4", "int8"], typer.Option("--to", help="The number format of the linear layers.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write: a new one, or an empty one.")],
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help="The text to measure perplexity on; by default Deskmate's documentation."
        ),
    ] = None,
    perplexity: Annotated[
        bool,
        typer.Option(
            "--perplexity/--no-perplexity",
            help="Measure perplexity before and after, which loads the whole unquantized model.",
        ),
    ] = True,
) -> None:
    """Write a quantized copy of a model as compressed-tensors, which Deskmate, vLLM and transformers read."""
    from app.cli.quantize import quantize as quantized
    from app.cli.quantize import read_text

    for line in quantized(model, to, out, read_text(text) if perplexity else None):
        typer.echo(line)


@cli.command()
@with_flags(AppSettings, EngineSettings)
def doctor(
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="MODEL",
            help="Only report the memory that a model needs: a folder, a GGUF file, or a hub id.",
        ),
    ] = None,
    context: Annotated[int, typer.Option("--context", min=1, help="With --size: tokens per conversation.")] = 8192,
    users: Annotated[int, typer.Option("--users", min=1, help="With --size: replies generated at the same time.")] = 10,
    **flags: str | bool | None,
) -> None:
    """Check everything that ``serve`` needs, and report what would keep it from starting."""
    if size is not None:
        from app.cli.sizing import sizing_report
        from engine import check_context, model_size

        measured = model_size(size)
        check_context(measured, context)
        kv_cache_dtype = read_settings(EngineSettings, flags).kv_cache_dtype
        for line in sizing_report(measured, context, users, kv_cache_dtype):
            typer.echo(line)
        return
    from app.cli.doctor import examine

    findings = list(examine(read_settings(AppSettings, flags), read_settings(EngineSettings, flags)))
    for finding in findings:
        typer.echo(f"{'!!' if finding.serious else 'ok'}  {finding.subject}: {finding.text}")
    if any(finding.serious for finding in findings):
        sys.exit(2)

"""The command line: arguments in, calls out; no logic of its own.

Heavy imports wait until a command needs them, so that `--help` answers at once.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from clawmode.config import CodeModeConfig
    from clawmode.results import CodeModeResult

EXIT = {"completed": 0, "failed": 1, "waiting": 3}
USAGE = 2

app = typer.Typer(
    help="Gives a language model two tools, exec and wait, instead of two hundred.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than the rest of `--help`
)


def _version(wanted: bool) -> None:
    if wanted:
        from clawmode import __version__

        typer.echo(f"clawmode {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="A JavaScript or TypeScript file, or - for stdin.")],
    language: Annotated[
        str | None,
        typer.Option(help="javascript or typescript. Default: by the file's ending."),
    ] = None,
    timeout_ms: Annotated[int, typer.Option(help="Time for each exec or wait.")] = 10_000,
    memory_limit_bytes: Annotated[int, typer.Option(help="Heap of the program.")] = 64 << 20,
    max_output_bytes: Annotated[int, typer.Option(help="Output and value, as JSON.")] = 64 << 10,
    max_snapshot_bytes: Annotated[int, typer.Option(help="A frozen program.")] = 10 << 20,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Go on with a program that waits.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run one cell: the body of an async function.

    Exit status: 0 completed, 1 failed, 2 usage, 3 waiting.
    """
    import anyio

    from clawmode.config import CodeModeConfig
    from clawmode.sandbox.protocol import LANGUAGES

    chosen = language or ("typescript" if file.endswith((".ts", ".mts", ".cts")) else "javascript")
    if chosen not in LANGUAGES:
        _usage(f"--language must be {' or '.join(LANGUAGES)}, not {chosen!r}")
    config = CodeModeConfig(
        timeout_ms=timeout_ms,
        memory_limit_bytes=memory_limit_bytes,
        max_output_bytes=max_output_bytes,
        max_snapshot_bytes=max_snapshot_bytes,
    )
    _say_clamped(config)
    result = anyio.run(_run_cell, _read(file), chosen, config, wait, as_json)
    if as_json:
        typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
    raise typer.Exit(EXIT[result.status])


async def _run_cell(
    code: str, language: str, config: "CodeModeConfig", wait: bool, quiet: bool
) -> "CodeModeResult":
    from dataclasses import replace

    from clawmode.code_mode import CodeMode

    async with CodeMode(config=config) as code_mode:
        result = await code_mode.exec(code, language)
        output = list(result.output)
        _show(result, quiet)
        while result.status == "waiting" and wait:
            assert result.run_id is not None
            result = await code_mode.wait(result.run_id)
            output += result.output
            _show(result, quiet)
    return replace(result, output=output)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode()
        return Path(file).read_text("utf-8")
    except OSError as error:
        _usage(f"cannot read {file}: {error.strerror}")
    except UnicodeDecodeError as error:
        _usage(f"{file} is not UTF-8: byte {error.start}")


def _usage(message: str) -> NoReturn:
    typer.echo(f"clawmode: {message}", err=True)
    raise typer.Exit(USAGE)


def _say_clamped(config: "CodeModeConfig") -> None:
    from clawmode.config import RANGES

    clamped = config.clamped()
    for name in RANGES:
        given, used = getattr(config, name), getattr(clamped, name)
        if given != used:
            option = "--" + name.replace("_", "-")
            typer.echo(f"clawmode: {option} {given} is out of range: {used} is used", err=True)


def _show(result: "CodeModeResult", quiet: bool) -> None:
    """For people: output as it comes, then the value, or what went wrong."""
    if quiet:
        return
    for item in result.output:
        assert isinstance(item, dict)
        text = item.get("text")
        typer.echo(text if isinstance(text, str) else _pretty(item.get("value")))
    if result.status == "failed":
        typer.secho(f"failed ({result.code}): {result.error}", fg="red", err=True)
    elif result.status == "waiting":
        typer.secho(f"waiting ({result.reason})", fg="yellow", err=True)
    elif result.value is not None:
        typer.echo(_pretty(result.value))


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def main() -> None:
    """The command `clawmode`."""
    app()

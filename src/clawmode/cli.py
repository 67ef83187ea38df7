"""The command line: arguments in, calls out; no logic of its own.

Heavy imports wait until a command needs them, so that `--help` answers at once. What a program
emits and returns goes to stdout; everything else, what tools print included, to stderr.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TypeAlias

import typer

if TYPE_CHECKING:
    from clawmode.command_setup import Options, Setup
    from clawmode.terminal import ProgramOutput

EXIT = {"completed": 0, "failed": 1, "waiting": 3}
FAILED = 1
USAGE = 2
STOPPED = 130

app = typer.Typer(
    help="Gives a language model two tools, exec and wait, instead of two hundred.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than the rest of `--help`
)
tools_app = typer.Typer(
    help="Look at the tools that programs can call.", no_args_is_help=True, rich_markup_mode=None
)
config_app = typer.Typer(
    help="Look at the configuration.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tools_app, name="tools")
app.add_typer(config_app, name="config")


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


# ---- Options of several commands ----

Approve: TypeAlias = Literal["ask", "always", "never"]

ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE:ATTRIBUTE",
        help="A Tool, several, or a callable that returns them; can be repeated. The current "
        "folder can be imported from.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Default: clawmode.json5, if there is one."),
]
McpConfigOption = Annotated[
    str | None,
    typer.Option(
        "--mcp-config",
        metavar="FILE",
        help="MCP servers of another client's file (mcpServers), beside those configured.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="JSON|FILE",
        help='What is allowed of what the configuration allows: {"allow": [], "deny": []}.',
    ),
]
ApproveOption = Annotated[
    Approve,
    typer.Option(help='What to do about calls of tools that are not declared effect="read".'),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="FOLDER", help="Where programs wait. Default: the user's state folder."
    ),
]
TimeoutOption = Annotated[int | None, typer.Option(help="Time for each exec or wait.")]
MemoryOption = Annotated[int | None, typer.Option(help="Heap of the program.")]
OutputOption = Annotated[int | None, typer.Option(help="Output and value, as JSON.")]
SnapshotOption = Annotated[int | None, typer.Option(help="A frozen program.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show nested calls.")]


# ---- Cells ----


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="A JavaScript or TypeScript file, or - for stdin.")],
    language: Annotated[
        str | None,
        typer.Option(help="javascript or typescript. Default: by the file's ending."),
    ] = None,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    state: StateOption = None,
    timeout_ms: TimeoutOption = None,
    memory_limit_bytes: MemoryOption = None,
    max_output_bytes: OutputOption = None,
    max_snapshot_bytes: SnapshotOption = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Go on with a program that waits.")
    ] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one cell: the body of an async function.

    Limits that are not given are those of the configuration. Exit status: 0 completed, 1 failed,
    2 usage, 3 waiting, 130 stopped.
    """
    chosen = language or ("typescript" if file.endswith((".ts", ".mts", ".cts")) else "javascript")
    limits = _limits(timeout_ms, memory_limit_bytes, max_output_bytes, max_snapshot_bytes)
    with _command() as out:
        from clawmode.foreground import Foreground
        from clawmode.sandbox.protocol import LANGUAGES

        if chosen not in LANGUAGES:
            _fail(f"--language must be {' or '.join(LANGUAGES)}, not {chosen!r}", USAGE)
        code = _read(file)
        options = _options(tools, config, mcp_config, policy, approve, state, limits)
        cell = Foreground(
            options=options,
            setup=_set_up(options),
            out=out,
            approve=approve,
            wait=wait,
            as_json=as_json,
            quiet=quiet,
            stdin_is_taken=file == "-",
        )
        result = cell.run(lambda code_mode: code_mode.exec(code, chosen))
    raise typer.Exit(EXIT[result.status])


@app.command("wait")
def wait_for(
    run_id: Annotated[str, typer.Argument(metavar="RUNID", help="As `run` told it.")],
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    state: StateOption = None,
    timeout_ms: TimeoutOption = None,
    memory_limit_bytes: MemoryOption = None,
    max_output_bytes: OutputOption = None,
    max_snapshot_bytes: SnapshotOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with a cell that `run` left waiting, with the same tools.

    Exit status: as for `run`.
    """
    limits = _limits(timeout_ms, memory_limit_bytes, max_output_bytes, max_snapshot_bytes)
    with _command() as out:
        from clawmode.foreground import Foreground

        options = _options(tools, config, mcp_config, policy, approve, state, limits)
        cell = Foreground(
            options=options,
            setup=_set_up(options),
            out=out,
            approve=approve,
            as_json=as_json,
            quiet=quiet,
        )
        result = cell.run(lambda code_mode: code_mode.wait(run_id), run_id)
    raise typer.Exit(EXIT[result.status])


# ---- MCP ----


@app.command("mcp")
def serve_mcp(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve over HTTP there, not over stdio."),
    ] = None,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    timeout_ms: TimeoutOption = None,
) -> None:
    """Be an MCP server with two tools, exec and wait, in front of all the others.

    Over HTTP clients show a bearer token: that of CLAWMODE_MCP_TOKEN, or one that is made and
    printed.
    """
    with _told_errors():
        from clawmode.mcp.command import serve

        options = _options(
            tools, config, mcp_config, policy, approve, None, {"timeout_ms": timeout_ms}
        )
        serve(_set_up(options), approve, http)


@app.command()
def login(
    server: Annotated[str, typer.Argument(help="The MCP server, as the configuration names it.")],
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    state: StateOption = None,
) -> None:
    """Log in to an MCP server that wants a person to, in a browser; the token is kept."""
    with _told_errors():
        from clawmode.mcp.command import log_in

        log_in(_set_up(_options(None, config, mcp_config, None, "ask", state)), server)


# ---- Tools ----


@tools_app.command("list")
def list_tools(
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Denied ones too, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tools that programs can call."""
    with _command() as out:
        from clawmode.listings import list_all, print_entries

        setup = _connected(_set_up(_options(tools, config, mcp_config, policy)))
        entries = list_all(setup.tools, setup.policy)
        shown = [entry for entry in entries if everything or "denied" not in entry]
        if as_json:
            out.json({"tools": shown})
        elif shown:
            print_entries(out, shown, denied=everything)
        else:
            _say(
                "all tools are denied: see --all" if entries else "there are no tools: see --tools"
            )


@tools_app.command("search")
def search_tools(
    query: Annotated[str, typer.Argument(help="What you look for.")],
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many, at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search as programs do, the best match first."""
    with _command() as out:
        from clawmode.listings import print_found, search

        setup = _connected(_set_up(_options(tools, config, mcp_config, policy)))
        wanted = min(limit or setup.config.search_default_limit, setup.config.max_search_limit)
        found = search(setup.catalog(), query, wanted)
        if as_json:
            out.json(found)
        else:
            print_found(out, found)


@tools_app.command("show")
def show_tool(
    reference: Annotated[
        str, typer.Argument(metavar="ID", help="An id, or a name that only one tool has.")
    ],
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a tool does, how it is called, and its JSON schema.

    Exit status: 0, 1 there is no such tool, 2 usage.
    """
    with _command() as out:
        from clawmode.exceptions import ToolLookupError
        from clawmode.listings import page_of, print_page, why_not

        setup = _connected(_set_up(_options(tools, config, mcp_config, policy)))
        try:
            page = page_of(setup.catalog(), reference)
        except ToolLookupError as error:
            _fail(why_not(reference, error, setup.tools, setup.policy), FAILED)
        if as_json:
            out.json(page)
        else:
            print_page(out, page)


# ---- Configuration ----


@config_app.command("check")
def check_config(
    file: Annotated[
        str | None, typer.Argument(help="Default: where every command looks for it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say all that is wrong with the configuration file.

    Exit status: 0 it can be used, perhaps with warnings; 1 it cannot; 2 usage.
    """
    with _command() as out:
        from clawmode.command_setup import check
        from clawmode.listings import print_report

        report = check(file)
        if as_json:
            path = None if report.path is None else str(report.path)
            out.json(asdict(report) | {"path": path})
        else:
            print_report(out, report)
    raise typer.Exit(FAILED if report.errors else 0)


@app.command()
def doctor(
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether everything is there that programs need, MCP servers included.

    Exit status: 0 all is well, perhaps with notes; 1 there is a problem.
    """
    with _command() as out:
        from clawmode.doctor import examine

        found = examine(_options(tools, config, mcp_config, policy, "ask", state))
        if as_json:
            out.json({"findings": [asdict(finding) for finding in found]})
        else:
            rows = [(finding.health, finding.what, finding.detail) for finding in found]
            out.table(["", "what", "detail"], rows)
    raise typer.Exit(FAILED if any(each.health == "problem" for each in found) else 0)


# ---- What the commands share ----


def _limits(
    timeout_ms: int | None, memory: int | None, output: int | None, snapshot: int | None
) -> dict[str, int | None]:
    return {
        "timeout_ms": timeout_ms,
        "memory_limit_bytes": memory,
        "max_output_bytes": output,
        "max_snapshot_bytes": snapshot,
    }


def _options(
    tools: list[str] | None,
    config: str | None,
    mcp_config: str | None,
    policy: str | None,
    approve: Approve = "ask",
    state: str | None = None,
    limits: dict[str, int | None] | None = None,
) -> "Options":
    from clawmode.command_setup import Options

    return Options(
        tools=tuple(tools or ()),
        config=config,
        mcp_config=mcp_config,
        policy=policy,
        approve=approve,
        state=state,
        limits={name: value for name, value in (limits or {}).items() if value is not None},
    )


def _set_up(options: "Options") -> "Setup":
    from clawmode.command_setup import set_up

    setup = set_up(options)
    for note in setup.notes:
        _say(note)
    return setup


def _connected(setup: "Setup") -> "Setup":
    """With the tools of its MCP servers, to be looked at."""
    if not setup.servers:
        return setup
    from clawmode.mcp.command import with_servers

    return with_servers(setup)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode()
        return Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        _fail(f"{file} is not UTF-8: byte {error.start}", USAGE)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        _fail(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", USAGE)


@contextmanager
def _command() -> "Iterator[ProgramOutput]":
    """What most commands do at their edges: stdout of their own, and no traceback for anybody."""
    from clawmode.terminal import ProgramOutput

    out = ProgramOutput()
    with _told_errors():
        yield out
    if out.failure:
        _fail(f"the output could not be written: {out.failure}", FAILED)


@contextmanager
def _told_errors() -> "Iterator[None]":
    from clawmode.exceptions import ClawmodeError, ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        _fail(str(error), USAGE)
    except ClawmodeError as error:
        _fail(str(error), FAILED)
    except KeyboardInterrupt:
        _say("stopped")
        if any(not thread.daemon for thread in threading.enumerate()[1:]):
            # A tool that is not async goes on in its thread, and would hold the process.
            os._exit(STOPPED)
        raise typer.Exit(STOPPED) from None


def _fail(message: str, status: int) -> NoReturn:
    _say(message)
    raise typer.Exit(status)


def _say(message: str) -> None:
    from clawmode.terminal import tell

    tell(message)


def main() -> None:
    """The command `clawmode`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: else the next file would take its place
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    app()

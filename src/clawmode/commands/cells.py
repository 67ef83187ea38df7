"""The commands `run` and `wait`: one cell at the terminal."""

from typing import Annotated

import typer

from clawmode.commands.options import (
    USAGE,
    ApproveOption,
    ConfigOption,
    JsonOption,
    McpConfigOption,
    MemoryOption,
    OutputOption,
    PolicyOption,
    QuietOption,
    SnapshotOption,
    StateOption,
    TimeoutOption,
    ToolsOption,
    command,
    fail,
    gather,
    limits_of,
    load_setup,
    read_source,
)

EXIT = {"completed": 0, "failed": 1, "waiting": 3}


def run(
    file: Annotated[str, typer.Argument(help="A JavaScript or TypeScript file, or - for stdin.")],
    language: Annotated[
        str | None,
        typer.Option(help="javascript or typescript. Default: by the extension of the file."),
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
        bool,
        typer.Option(
            "--wait/--no-wait", help="Wait with a program that waits, or leave it waiting."
        ),
    ] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one cell: the body of an async function.

    The configuration sets the limits that you do not give here.

    Exit status: 0 completed, 1 failed, 2 wrong usage, 3 waiting, 130 stopped.
    """
    chosen = language or ("typescript" if file.endswith((".ts", ".mts", ".cts")) else "javascript")
    limits = limits_of(timeout_ms, memory_limit_bytes, max_output_bytes, max_snapshot_bytes)
    with command() as out:
        from clawmode.sandbox.protocol import LANGUAGES
        from clawmode.terminal.cell import TerminalCell

        if chosen not in LANGUAGES:
            fail(f"--language must be {' or '.join(LANGUAGES)}, not {chosen!r}", USAGE)
        code = read_source(file)
        options = gather(tools, config, mcp_config, policy, approve, state, limits)
        cell = TerminalCell(
            options=options,
            setup=load_setup(options),
            out=out,
            approve=approve,
            wait=wait,
            as_json=as_json,
            quiet=quiet,
            stdin_is_taken=file == "-",
        )
        result = cell.run(lambda code_mode: code_mode.exec(code, chosen))
    raise typer.Exit(EXIT[result.status])


def wait_for(
    run_id: Annotated[str, typer.Argument(metavar="RUNID", help="The id that `run` printed.")],
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
    """Resume a program that `run` left waiting.

    The program needs the same tools. The exit statuses are those of `run`.
    """
    limits = limits_of(timeout_ms, memory_limit_bytes, max_output_bytes, max_snapshot_bytes)
    with command() as out:
        from clawmode.terminal.cell import TerminalCell

        options = gather(tools, config, mcp_config, policy, approve, state, limits)
        cell = TerminalCell(
            options=options,
            setup=load_setup(options),
            out=out,
            approve=approve,
            as_json=as_json,
            quiet=quiet,
        )
        result = cell.run(lambda code_mode: code_mode.wait(run_id), run_id)
    raise typer.Exit(EXIT[result.status])

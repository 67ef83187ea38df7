"""The commands `mcp`, `login` and `doctor`: MCP in both directions, and the check of a setup."""

from dataclasses import asdict
from typing import Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    ApproveOption,
    ConfigOption,
    JsonOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    TimeoutOption,
    ToolsOption,
    command,
    exit_on_error,
    gather,
    load_setup,
    say,
)
from clawmode.text import escape


def serve_mcp(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve over HTTP at this address, not over stdio."),
    ] = None,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    timeout_ms: TimeoutOption = None,
) -> None:
    """Serve two tools, exec and wait, to an MCP client.

    Programs call your Python tools and the MCP servers of the configuration. Over HTTP, clients
    send a bearer token: the token in CLAWMODE_MCP_TOKEN, or a generated one, which is printed.
    """
    with exit_on_error():
        from clawmode.terminal.mcp_face import serve

        options = gather(
            tools, config, mcp_config, policy, approve, None, {"timeout_ms": timeout_ms}
        )
        serve(load_setup(options), approve, http)


def login(
    server: Annotated[str, typer.Argument(help="The name of the server in the configuration.")],
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    state: StateOption = None,
) -> None:
    """Log in to an MCP server in a browser.

    The state folder keeps the token.
    """
    with exit_on_error():
        from clawmode.terminal.mcp_face import log_in

        log_in(load_setup(gather(None, config, mcp_config, None, "ask", state)), server)


def doctor(
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that everything that programs need is present.

    The check includes models, keys and MCP servers.

    Exit status: 0 no problems, perhaps notes; 1 there is a problem.
    """
    with command() as out:
        import anyio

        from clawmode.terminal.doctor import Finding, examine

        found: list[Finding] = []

        async def look() -> None:
            options = gather(tools, config, mcp_config, policy, "ask", state)
            async for finding in examine(options, lambda text: say(f"… {text}")):
                found.append(finding)
                if not as_json:  # at once: some of the checks take long
                    line = f"{finding.health:<8} {finding.what:<15} {finding.detail}"
                    out.say(escape(line))

        anyio.run(look)
        if as_json:
            out.json({"findings": [asdict(finding) for finding in found]})
    raise typer.Exit(FAILED if any(finding.health == "problem" for finding in found) else 0)

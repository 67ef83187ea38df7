"""`mcp`, `login`, `doctor`: MCP servers behind us, us as one, and what is wrong with either."""

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
    gather,
    load_setup,
    say,
    told_errors,
)
from clawmode.text import escape


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
    """Be an MCP server with two tools, exec and wait.

    Programs call the tools of the servers behind it. Over HTTP clients show a bearer token:
    that of CLAWMODE_MCP_TOKEN, or one that is made and printed.
    """
    with told_errors():
        from clawmode.terminal.mcp_face import serve

        options = gather(
            tools, config, mcp_config, policy, approve, None, {"timeout_ms": timeout_ms}
        )
        serve(load_setup(options), approve, http)


def login(
    server: Annotated[str, typer.Argument(help="The MCP server, as the configuration names it.")],
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    state: StateOption = None,
) -> None:
    """Log in to an MCP server in a browser.

    The token is kept in the state folder.
    """
    with told_errors():
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
    """Check that everything is there that programs need.

    That includes models, keys and MCP servers.

    Exit status: 0 all is well, perhaps with notes; 1 there is a problem.
    """
    with command() as out:
        import anyio

        from clawmode.terminal.doctor import Finding, examine

        found: list[Finding] = []

        async def look() -> None:
            options = gather(tools, config, mcp_config, policy, "ask", state)
            async for it in examine(options, lambda text: say(f"… {text}")):
                found.append(it)
                if not as_json:  # as it is found: some of it takes long
                    out.say(escape(f"{it.health:<8} {it.what:<15} {it.detail}"))

        anyio.run(look)
        if as_json:
            out.json({"findings": [asdict(finding) for finding in found]})
    raise typer.Exit(FAILED if any(each.health == "problem" for each in found) else 0)

"""The commands `mcp`, `login`, `setup` and `doctor`: MCP in both directions, and checks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawmode.commands.options import (
    FAILED,
    TOOLS,
    USAGE,
    JsonOption,
    Options,
    command,
    exit_on_error,
    fail,
    load_setup,
    new_app,
    say,
    takes,
)
from clawmode.text import escape

if TYPE_CHECKING:
    from clawmode.mcp.stdio_wire import StdioWire


mcp_app = new_app("Serve two tools, exec and wait, to an MCP client.")
token_app = new_app("Create, list and revoke the tokens of clients over HTTP.")
mcp_app.add_typer(token_app, name="token")

_wires: "list[StdioWire]" = []


def _claim_stdio(given: dict[str, Any]) -> None:
    """From now on, the first message of a client is answered, whatever has to be imported."""
    if given["http"] is None and given["context"].invoked_subcommand is None:
        from clawmode.mcp.stdio_wire import StdioWire

        _wires.append(StdioWire.claim())


@mcp_app.callback(invoke_without_command=True, no_args_is_help=False)
@takes(*TOOLS, "approve", "state", "timeout_ms", first=_claim_stdio)
def serve_mcp(
    options: Options,
    context: typer.Context,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve over HTTP at this address, not over stdio."),
    ] = None,
    public_url: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The URL under which clients reach the server, behind a proxy."
        ),
    ] = "",
    oauth_issuer: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Also accept access tokens (JWT) of this identity provider for --public-url.",
        ),
    ] = "",
    oauth_scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="A scope that these access tokens must have.")
    ] = "",
) -> None:
    """Serve two tools, exec and wait, to an MCP client.

    Programs call your Python tools and the MCP servers of the configuration. Over HTTP, clients
    send a bearer token: one of `mcp token add`, the token in CLAWMODE_MCP_TOKEN, or a generated
    one, which is printed.
    """
    if context.invoked_subcommand is not None:  # such as `mcp token`
        return
    with exit_on_error():
        from clawmode.terminal.mcp_face import serve
        from clawmode.terminal.mcp_http import HttpOptions

        setup, approve = load_setup(options), options.approve or "ask"
        if not http:
            serve(setup, approve, _wires.pop())
            return
        at = HttpOptions(
            address=http, public_url=public_url, issuer=oauth_issuer, scope=oauth_scope
        )
        serve(setup, approve, at)


@token_app.command("add")
def add_token(
    options: Options,
    name: Annotated[str, typer.Argument(help="The name of the client, for people and logs.")],
) -> None:
    """Create a token and print it.

    Clients with different tokens share neither programs nor questions nor permissions. Only a hash
    of the token is stored, so it cannot be shown again.
    """
    with command() as out:
        from clawmode.rpc.tokens import MCP_FILE, Tokens

        if not name.isprintable() or not 0 < len(name) <= 100:
            fail(f"NAME must have 1 to 100 printable characters, got {name[:120]!r}", USAGE)
        out.say(Tokens(load_setup(options).state, file=MCP_FILE).add(name))


@token_app.command("list")
def list_tokens(options: Options, as_json: JsonOption = False) -> None:
    """List the names of the tokens."""
    with command() as out:
        from clawmode.rpc.tokens import MCP_FILE, Tokens

        names = [it.name for it in Tokens(load_setup(options).state, file=MCP_FILE).list()]
        if as_json:
            out.json({"tokens": [{"name": name} for name in names]})
        else:
            out.table(["name"], [[name] for name in names])


@token_app.command("revoke")
def revoke_token(
    options: Options,
    name: Annotated[str, typer.Argument(help="The name of the client.")],
) -> None:
    """Revoke a token: from now on, no request with it is answered."""
    with command() as out:
        from clawmode.rpc.tokens import MCP_FILE, Tokens

        Tokens(load_setup(options).state, file=MCP_FILE).revoke(name)
        out.say(f"revoked: {name}")


@takes("config", "mcp_config", "state")
def login(
    options: Options,
    server: Annotated[str, typer.Argument(help="The name of the server in the configuration.")],
    user: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The client whose login it is.")
    ] = "",
) -> None:
    """Log in to an MCP server in a browser.

    The state folder keeps the token. With --as, the login is for a client of `clawmode mcp --http`:
    the name of its token. The server needs `credentials: "user"` in its entry.
    """
    with exit_on_error():
        from clawmode.terminal.mcp_face import log_in

        log_in(load_setup(options), server, user)


def set_up(
    client: Annotated[
        list[str] | None, typer.Option(help="Only this client, such as cursor. Can be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Change the files unasked.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Change the files back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Move the MCP servers of your clients behind clawmode.

    Finds the settings of Claude Code, Claude Desktop, Cursor, VS Code, Codex, Gemini CLI, Zed,
    Windsurf and opencode, shows what would change, and asks. Each client then has one server,
    clawmode. A copy of every changed file is kept, and --undo restores it. With --json, nothing is
    changed without --yes.

    Exit status: 0 done, or nothing to do; 1 a file could not be changed; 2 nobody agreed.
    """
    with command() as out:
        from clawmode.terminal.mcp_setup import SetupDialog

        dialog = SetupDialog(out, client, agreed=yes, as_json=as_json)
        status = dialog.undo() if undo else dialog.move()
    raise typer.Exit(status)


@takes(*TOOLS, "state")
def doctor(options: Options, as_json: JsonOption = False) -> None:
    """Check that everything that programs need is present.

    The check includes models, keys and MCP servers.

    Exit status: 0 no problems, perhaps notes; 1 there is a problem.
    """
    with command() as out:
        import anyio

        from clawmode.terminal.doctor import Finding, examine

        found: list[Finding] = []

        async def look() -> None:
            async for finding in examine(options, lambda text: say(f"… {text}")):
                found.append(finding)
                if not as_json:  # at once: some of the checks take long
                    line = f"{finding.health:<8} {finding.what:<15} {finding.detail}"
                    out.say(escape(line))

        anyio.run(look)
        if as_json:
            out.json({"findings": [asdict(finding) for finding in found]})
    raise typer.Exit(FAILED if any(finding.health == "problem" for finding in found) else 0)

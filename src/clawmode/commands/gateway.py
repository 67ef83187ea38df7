"""The commands of `gateway`: serve, status, stop, reload, logs, tokens; and `dashboard`."""

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clawmode.commands.options import (
    FAILED,
    TOOLS,
    USAGE,
    JsonOption,
    Options,
    command,
    fail,
    load_setup,
    new_app,
    say,
    takes,
)

if TYPE_CHECKING:
    from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

app = new_app("Serve agents to many clients.")
token_app = new_app("Create, list and revoke the tokens of clients.")
app.add_typer(token_app, name="token")


@app.callback(invoke_without_command=True, no_args_is_help=False)
@takes(*TOOLS, "state")
def gateway(
    options: Options,
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="The address to listen on, instead of the configuration's.")
    ] = "",
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="The port; 0 selects a free port.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve agents over WebSocket, and run schedules and channels, until you stop it.

    Exit status: 0 stopped, 1 failed, 2 wrong usage.
    """
    if context.invoked_subcommand is not None:  # such as `gateway status`
        return
    with command() as out:
        from clawmode.app.loading import set_up
        from clawmode.app.secrets import known_secrets
        from clawmode.exceptions import ClawmodeError, ConfigurationError
        from clawmode.gateway import logs
        from clawmode.gateway.command import GatewayCommand
        from clawmode.rpc.presence import RunningGateway

        def ready(here: RunningGateway) -> None:
            line = "the gateway is at %s (process %d); Ctrl-C stops it"
            logger.info(line, here.url, here.pid)
            if as_json:
                out.json({"url": here.url, "pid": here.pid, "version": here.version})

        logs.log_to_stderr()
        try:
            setup = set_up(options, "gateway")
            logs.learn(known_secrets(setup))  # from here on, the log redacts these
            for note in setup.notes:
                logger.warning("%s", note)
            GatewayCommand(setup=setup, on_ready=ready, host=host, port=port).run()
        except ClawmodeError as error:
            if sys.stderr.isatty():
                raise
            logger.error("%s", error)  # not as plain text: a log collector expects lines of JSON
            code = USAGE if isinstance(error, ConfigurationError) else FAILED
            raise typer.Exit(code) from None


@app.command("status")
def status(options: Options, as_json: JsonOption = False) -> None:
    """Show whether a gateway runs on the state folder.

    Exit status: 0 a gateway runs, 1 no gateway runs.
    """
    with command() as out:
        from clawmode.rpc import presence

        setup = load_setup(options)
        known = presence.find(setup.state)
        runs = known is not None and presence.is_held(setup.state)
        if as_json:
            about = {"url": known.url, "pid": known.pid} if runs and known else {}
            out.json({"running": runs, **about})
        elif runs and known:
            out.say(f"running at {known.url} (process {known.pid}, version {known.version})")
        else:
            out.say("not running")
    raise typer.Exit(0 if runs else FAILED)


@app.command("stop")
def stop(options: Options) -> None:
    """Stop the gateway of the state folder.

    Runs that do not end in time are resumed at the next start.
    """
    with command() as out:
        from clawmode.gateway.command import stop_gateway

        setup = load_setup(options)
        stopped = stop_gateway(setup.state, say)
        out.say("not running" if stopped is None else f"stopped (process {stopped.pid})")


@app.command("reload")
def reload(options: Options) -> None:
    """Make the gateway read its configuration again.

    The command prints what changed and what needs a restart.

    Exit status: 0 reloaded; 1 the configuration has errors and nothing changed, or no gateway runs.
    """
    with command() as out:
        from clawmode.gateway.command import ask_gateway
        from clawmode.gateway.reload import summary
        from clawmode.rpc.protocol import RpcError

        setup = load_setup(options)
        try:
            done = ask_gateway(setup.state, "config.reload")
        except RpcError as error:
            fail("\n".join([str(error), *texts(error.details.get("report"))]), FAILED)
        out.say(summary(texts(done["applied"]), texts(done["needsRestart"])))


def texts(value: "JsonValue | None") -> list[str]:
    """Returns the items of a list in the gateway's answer as texts."""
    return [str(item) for item in value] if isinstance(value, list) else []


@app.command("logs")
def show_logs(
    options: Options,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=2_000, help="The number of lines.")
    ] = 100,
    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None,
        typer.Option(help="Show only lines of this level and above."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the last lines of the gateway's log, the newest last.

    The gateway keeps 2000 lines in memory.
    """
    with command() as out:
        from clawmode.gateway.command import ask_gateway
        from clawmode.gateway.logs import in_words

        setup = load_setup(options)
        params: JsonObject = {"limit": lines, **({"level": level} if level else {})}
        found: Any = ask_gateway(setup.state, "logs.tail", params)["lines"]
        for line in found:
            if as_json:
                out.json(line)
            else:
                out.say(in_words(line))


@takes("config", "state")
def dashboard(
    options: Options,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the link, and open no browser.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Open the page of the running gateway in a browser.

    The link logs a browser in, once, within a minute.

    Exit status: 0 done, 1 no gateway runs.
    """
    with command() as out:
        import webbrowser

        from clawmode.gateway.command import dashboard_link

        setup = load_setup(options)
        url, seconds = dashboard_link(setup.state)
        if as_json:
            out.json({"url": url, "expiresInMs": seconds * 1000})
        else:
            out.say(url)
        if no_open or as_json or not webbrowser.open(url):
            say(f"open this link in a browser on this machine; it works once, for {seconds} s")


# ---- Tokens ----


@token_app.command("add")
def add_token(
    options: Options,
    name: Annotated[
        str, typer.Argument(help="The name of the client, shown in logs and as the sender.")
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write, approvals or admin; can be repeated. Default: all."),
    ] = None,
) -> None:
    """Create a token and print it.

    Only a hash of the token is stored, so it cannot be shown again.
    """
    with command() as out:
        from clawmode.rpc.scopes import SCOPES
        from clawmode.rpc.tokens import Tokens, is_name

        wanted = tuple(f"operator.{it.removeprefix('operator.')}" for it in scope or ())
        for given, meant in zip(scope or (), wanted, strict=True):
            if meant not in SCOPES:
                known = ", ".join(it.removeprefix("operator.") for it in SCOPES)
                fail(f"--scope must be one of {known}, got {given!r}", USAGE)
        if not is_name(name):
            text = "NAME must have 1 to 100 printable characters, without spaces around them"
            fail(f"{text}, got {name[:120]!r}", USAGE)
        setup = load_setup(options)
        scopes = tuple(it for it in SCOPES if it in wanted) or SCOPES
        out.say(Tokens(setup.state).add(name, scopes))


@token_app.command("list")
def list_tokens(options: Options, as_json: JsonOption = False) -> None:
    """List the names of the tokens and their scopes."""
    with command() as out:
        from clawmode.rpc.tokens import Tokens

        setup = load_setup(options)
        found = Tokens(setup.state).list()
        if as_json:
            known = [it.model_dump(mode="json", exclude={"digest"}) for it in found]
            out.json({"tokens": known})
        else:
            out.table(["name", "scopes"], [[it.name, ", ".join(it.scopes)] for it in found])


@token_app.command("revoke")
def revoke_token(
    options: Options, name: Annotated[str, typer.Argument(help="The name of the client.")]
) -> None:
    """Revoke a token.

    Nobody can connect with the token again, and open connections that used it end within seconds.
    """
    with command() as out:
        from clawmode.rpc.tokens import Tokens

        setup = load_setup(options)
        Tokens(setup.state).revoke(name)
        out.say(f"revoked: {name}")

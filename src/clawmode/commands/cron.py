"""`cron list|add|enable|disable|run|remove`: turns at set times."""

from typing import TYPE_CHECKING, Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    STOPPED,
    USAGE,
    AgentApproveOption,
    ConfigOption,
    JsonOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    ToolsOption,
    command,
    fail,
    find_gateway,
    gather,
    load_setup,
    new_app,
    read_source,
    say,
)

if TYPE_CHECKING:
    from clawmode.app.setup import Setup

EXIT = {"ok": 0, "error": FAILED, "timeout": FAILED, "aborted": STOPPED}

app = new_app("Look at jobs, add and remove them, and run one now.")

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The name of the job.")]


@app.command("list")
def list_jobs(
    config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """List jobs: when they run next, and how they ran last."""
    with command() as out:
        from clawmode.terminal.cron_turn import list_all, print_jobs

        setup = _setup(config, state)
        if as_json:
            out.json({"jobs": list_all(setup)})
        else:
            print_jobs(out, setup)


@app.command("add")
def add_job(
    job_id: JobArgument,
    cron: Annotated[
        str,
        typer.Option(
            metavar="FIELDS", help="When: minute, hour, day, month, weekday; or @daily and so on."
        ),
    ] = "",
    every: Annotated[
        str, typer.Option(metavar="INTERVAL", help="Or how often: 30s, 15m, 2h, 1d.")
    ] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Or once: 2027-01-31T08:00.")] = "",
    tz: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone, such as Europe/Berlin; else UTC.")
    ] = "",
    message: Annotated[
        str, typer.Option("--message", "-m", help="What the agent is told; - reads it from stdin.")
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="Which agent. Default: the default one.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/model, instead of the agent's.")] = "",
    thinking: Annotated[
        str, typer.Option(help="off, minimal, low, medium or high, instead of the agent's.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long a turn may take.")
    ] = None,
    channel: Annotated[str, typer.Option(help="The channel that the reply goes to.")] = "",
    target: Annotated[str, typer.Option(help="To whom, on that channel.")] = "",
    disabled: Annotated[bool, typer.Option("--disabled", help="Only run it by command.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job: a turn of an agent at set times.

    Each turn has a session of its own.
    """
    with command() as out:
        from clawmode.cron.job import Job
        from clawmode.cron.words import in_words
        from clawmode.models.base import THINKING_LEVELS
        from clawmode.terminal.cron_turn import add, describe, next_time

        level = next((it for it in THINKING_LEVELS if it == thinking), None)
        if thinking and level is None:
            fail(f"--thinking is one of {', '.join(THINKING_LEVELS)}, not {thinking!r}", USAGE)
        if not message:
            fail("give a --message (- reads it from stdin)", USAGE)
        job = Job(
            id=job_id,
            message=read_source("-") if message == "-" else message,
            cron=cron,
            every=every,
            at=at,
            tz=tz,
            enabled=not disabled,
            agent=agent_id,
            model=model,
            thinking=level,
            timeout_seconds=timeout,
            channel=channel,
            target=target,
        )
        setup = _setup(config, state)
        added = add(setup, job)
        if as_json:
            out.json(describe(added))
        else:
            out.say(f"{added.job.id}: {in_words(job.schedule())}; next: {next_time(added)}")
        _say_who_runs_it(setup, state)


@app.command("enable")
def enable_job(job_id: JobArgument, config: ConfigOption = None, state: StateOption = None) -> None:
    """Let a job that was added run at its times again."""
    _switch(job_id, config, state, enabled=True)


@app.command("disable")
def disable_job(
    job_id: JobArgument, config: ConfigOption = None, state: StateOption = None
) -> None:
    """Keep a job from running by itself.

    `cron run` still runs it.
    """
    _switch(job_id, config, state, enabled=False)


def _switch(job_id: str, config: str | None, state: str | None, *, enabled: bool) -> None:
    with command() as out:
        from clawmode.terminal.cron_turn import enable, next_time

        setup = _setup(config, state)
        changed = enable(setup, job_id, enabled)
        out.say(f"{changed.job.id}: next: {next_time(changed)}")
        if enabled:
            _say_who_runs_it(setup, state)


def _say_who_runs_it(setup: "Setup", state: str | None) -> None:
    """Says why jobs do not run by themselves now, if they do not."""
    if not setup.configuration.cron.enabled:
        say("cron.enabled is false: no job runs by itself")
    elif find_gateway(gather(None, None, None, None, "ask", state)) is None:
        say("no gateway runs on this state folder: the job runs once one does (clawmode gateway)")


@app.command("remove")
def remove_job(job_id: JobArgument, config: ConfigOption = None, state: StateOption = None) -> None:
    """Remove a job that was added, and what is known of its runs. Its sessions are kept."""
    with command():
        from clawmode.terminal.cron_turn import remove

        remove(_setup(config, state), job_id)


@app.command("run")
def run_job(
    job_id: JobArgument,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the words alone.")] = False,
) -> None:
    """Run a job now, whatever its times are.

    It is shown as `agent` shows a turn.

    Exit status: 0 done, 1 failed or under way, 2 usage, 130 stopped.
    """
    with command() as out:
        from clawmode.terminal.cron_turn import CronCommand

        options = gather(tools, config, mcp_config, policy, approve, state)
        turn = CronCommand(
            options=options,
            setup=load_setup(options, "agent"),
            out=out,
            approve=approve,
            as_json=as_json,
            quiet=quiet,
        )
        result = turn.run_job(job_id)
    raise typer.Exit(EXIT[result.status])


def _setup(config: str | None, state: str | None) -> "Setup":
    return load_setup(gather(None, config, None, None, "ask", state))

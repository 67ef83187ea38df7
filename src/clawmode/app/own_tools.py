"""The tools that clawmode itself gives to a run: core tools, `session_status` and `message`.

They are made for each run from the configuration and the run's workspace.
"""

import fnmatch
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from clawmode.agent.run import AgentRun
from clawmode.config import resolve as settings
from clawmode.config.resolve import Configuration
from clawmode.config.tools import ExecSettings, FetchSettings, MessageSection, ToolSettings
from clawmode.context import RunContext
from clawmode.core_tools.exec_approvals import HOST_FILE, ExecRules, HostFile
from clawmode.core_tools.exec_policy import ExecGuard
from clawmode.core_tools.files import FileSettings
from clawmode.core_tools.places import FileLimits
from clawmode.core_tools.processes import ShellSessions
from clawmode.core_tools.shell import NO_SECRETS, ShellSettings, WithheldSecrets
from clawmode.core_tools.suite import make_core_tools
from clawmode.core_tools.web import WebSettings
from clawmode.exceptions import ToolProblem
from clawmode.messaging.outbox import Outbox
from clawmode.tools.function import tool
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

MAX_MADE = 64
"""The most sets of core tools that are kept for later runs."""


class OwnTools:
    """Makes our own tools for all runs of a process. Commands run only inside of `async with`.

    Args:
        configuration: Decides which tools there are and what they may do.
        state: The state folder, which contains the host's rules for commands.
        hooks: Receives the hook that decides about commands.
        outbox: Sends messages; without an outbox, there is no tool `message`.
        withheld: Secrets that commands do not inherit.
        protected: Files and folders that file tools cannot change.
    """

    def __init__(
        self,
        configuration: Configuration,
        state: Path,
        hooks: Hooks,
        outbox: Outbox | None = None,
        withheld: WithheldSecrets = NO_SECRETS,
        protected: tuple[Path, ...] = (),
    ) -> None:
        self._configuration = configuration
        self._protected = protected
        self._withheld = withheld
        self._outbox = outbox
        self._commands = ShellSessions()
        self._guard = ExecGuard(
            self._rules,
            host=HostFile(state / HOST_FILE),
            search_path=os.environ.get("PATH", os.defpath),
        )
        self._guard.install(hooks)
        # Deriving a tool from its function takes milliseconds, so tools are made once for all runs
        # with equal settings. A tool finds its run by the context of the call.
        self._runs: WeakValueDictionary[str, AgentRun] = WeakValueDictionary()
        self._session_tools = self._make_session_tools()
        self._made: OrderedDict[_CoreSettings, tuple[Tool, ...]] = OrderedDict()

    def change(
        self, configuration: Configuration, withheld: WithheldSecrets, protected: tuple[Path, ...]
    ) -> None:
        """Replaces the configuration, also for commands that run already."""
        self._configuration = configuration
        self._withheld = withheld
        self._protected = protected

    async def __aenter__(self) -> "OwnTools":
        await self._commands.__aenter__()
        return self

    async def __aexit__(self, *about: Any) -> None:
        await self._commands.__aexit__(*about)

    def for_run(self, run: AgentRun) -> tuple[Tool, ...]:
        """Returns the tools of a run, before any policy is applied."""
        self._runs[run.context.run_id] = run
        options = self._options(run.context)
        env = run.resolved.ingredients.skills.env() | (options.exec.env or {})
        wanted = _CoreSettings(
            run.resolved.workspace,
            options.exec.model_copy(update={"env": None}),
            options.web.fetch,
            options.fs.hard_links,
            tuple(sorted(env.items())),
            self._withheld,
            self._protected,
        )
        made = self._made.get(wanted)
        if made is None:
            made = self._made[wanted] = wanted.make(self._commands, self._guard)
            while len(self._made) > MAX_MADE:
                self._made.popitem(last=False)
        return (*made, *self._session_tools)

    async def end_session(self, run: RunContext) -> None:
        """Ends the commands that a session left running."""
        await self._commands.end(run)

    def _make_session_tools(self) -> tuple[Tool, ...]:
        """Makes `session_status`, and `message` if there is an outbox."""

        @tool(effect="read", idempotent=True)
        def session_status(context: ToolContext) -> JsonObject:
            """Look up this conversation: its key, model, tokens and active runs."""
            return self._run_of(context).report()

        @tool(effect="write")
        async def message(
            text: str,
            context: ToolContext,
            action: Literal["send", "edit"] = "send",
            channel: str = "",
            target: str = "",
            messageId: str = "",
        ) -> JsonObject:
            """Send a message to a person now, or change one that you sent.

            Your final answer is sent automatically: use this tool only for a message that cannot
            wait or that is for somebody else. Do not repeat the message in your final answer.

            Args:
                text: The message.
                context: The call.
                action: `send`, or `edit` with `messageId`.
                channel: The channel. Default: the channel of the request.
                target: The recipient. Default: the sender of the request.
                messageId: The message to change.
            """
            run = self._run_of(context)
            to = _destination(run, channel, target, self._options(run.context).message)
            assert self._outbox is not None
            if not text.strip():
                raise ToolProblem("invalid", "the message is empty")
            edited = messageId if action == "edit" else ""
            if action == "edit" and not edited:
                raise ToolProblem("invalid", "`messageId` is required when `action` is `edit`")
            key = run.session.key
            sent = await self._outbox.send(*to, text, session_key=key, edited=edited)
            if sent.status == "failed":
                raise ToolProblem("not_sent", f"the message was not sent: {sent.error}")
            if sent.status == "sent":
                run.sent.add(sent.text, visible=to == (run.request.channel, run.request.target))
            return {"status": sent.status, "messageId": sent.message_id, "channel": to[0]}

        return (session_status, message) if self._outbox is not None else (session_status,)

    def _run_of(self, context: ToolContext) -> AgentRun:
        run = self._runs.get(context.run.run_id)
        if run is None or run.ended.is_set():
            raise ToolProblem("not_found", "this call belongs to no conversation")
        return run

    def _options(self, run: RunContext) -> ToolSettings:
        return settings.tools(self._configuration, run.agent_id)

    def _rules(self, run: RunContext) -> ExecRules:
        wanted = self._options(run).exec
        return ExecRules(security=wanted.security, ask=wanted.ask, ask_fallback=wanted.ask_fallback)


class _CoreSettings(NamedTuple):
    """The settings of a set of core tools. Equal settings share one set."""

    workspace: Path
    shell: ExecSettings
    fetch: FetchSettings
    hard_links: bool
    env: tuple[tuple[str, str], ...]
    withheld: WithheldSecrets
    protected: tuple[Path, ...]

    def make(self, commands: ShellSessions, guard: ExecGuard) -> tuple[Tool, ...]:
        shell, fetch = self.shell, self.fetch
        made = make_core_tools(
            self.workspace,
            files=FileSettings(
                limits=FileLimits(hard_links=self.hard_links, protected=self.protected)
            ),
            shell=ShellSettings(
                timeout_seconds=shell.timeout_sec,
                yield_ms=shell.background_ms,
                env=dict(self.env),
                withheld=self.withheld,
            ),
            web=WebSettings(
                allow_private=fetch.allow_private,
                max_chars=fetch.max_chars,
                timeout_seconds=fetch.timeout_seconds,
            ),
            sessions=commands,
            guard=guard,
        )
        return made.tools


def _destination(
    run: AgentRun, channel: str, target: str, options: MessageSection
) -> tuple[str, str]:
    """Returns the channel and the target of a message.

    Raises:
        ToolProblem: The destination is incomplete or not allowed.
    """
    here = (run.request.channel, run.request.target)
    to = (channel or here[0], target or (here[1] if channel in ("", here[0]) else ""))
    if to == here and all(here):
        return to
    if not all(to):
        text = "`channel` and `target` are required: this run was not started by a channel"
        raise ToolProblem("invalid", text)
    if not any(fnmatch.fnmatchcase(":".join(to), pattern) for pattern in options.targets):
        text = f"messages to {to[0]}:{to[1]} are not allowed (tools.message.targets)"
        raise ToolProblem("not_allowed", text)
    return to

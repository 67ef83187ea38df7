"""Our own tools, as the configuration wants them: made for each run, and for its workspace."""

import fnmatch
import os
from pathlib import Path
from types import TracebackType
from typing import Literal

from clawmode.agent import settings
from clawmode.agent.session_run import SessionRun
from clawmode.agent.settings import Configuration, ToolOptions
from clawmode.channels.outbox import Outbox
from clawmode.context import RunContext
from clawmode.core_tools.exec_approvals import ExecRules, HostFile
from clawmode.core_tools.exec_policy import ExecGuard
from clawmode.core_tools.files import FileSettings
from clawmode.core_tools.places import FileLimits
from clawmode.core_tools.problems import ToolProblem
from clawmode.core_tools.processes import ShellSessions
from clawmode.core_tools.shell import ShellSettings
from clawmode.core_tools.suite import core_tools
from clawmode.core_tools.web import WebSettings
from clawmode.hooks import Hooks
from clawmode.tool_function import tool
from clawmode.tools import JsonObject, Tool

HOST_FILE = "exec-approvals.json"


class OwnTools:
    """Our own tools, for all runs of a process. Commands run only inside of `async with`.

    Args:
        configuration: What they may do.
        state: Where the host's rules for commands are.
        hooks: Where whoever decides about commands is heard.
        outbox: Where messages go; without one, there is no `message`.
    """

    def __init__(
        self,
        configuration: Configuration,
        state: Path,
        hooks: Hooks,
        outbox: Outbox | None = None,
    ) -> None:
        self._configuration = configuration
        self._outbox = outbox
        self._commands = ShellSessions()
        self._guard = ExecGuard(
            self._rules,
            host=HostFile(state / HOST_FILE),
            search_path=os.environ.get("PATH", os.defpath),
        )
        self._guard.install(hooks)

    async def __aenter__(self) -> "OwnTools":
        await self._commands.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._commands.__aexit__(kind, error, trace)

    def for_run(self, run: SessionRun) -> tuple[Tool, ...]:
        """The tools of a run, before any policy."""
        options = self._options(run.context)
        shell, fetch = options.exec, options.fetch
        made = core_tools(
            run.settings.workspace,
            files=FileSettings(limits=FileLimits(hard_links=options.files.hard_links is True)),
            shell=ShellSettings(
                timeout_seconds=shell.timeout_sec or 1_800,
                yield_ms=10_000 if shell.background_ms is None else shell.background_ms,
                env=run.settings.ingredients.skills.env() | (shell.env or {}),
            ),
            web=WebSettings(
                allow_private=fetch.allow_private or (),
                max_chars=fetch.max_chars or 50_000,
                timeout_seconds=fetch.timeout_seconds or 30,
            ),
            sessions=self._commands,
            guard=self._guard,
        )
        messages = () if self._outbox is None else (_message_tool(run, self._outbox, options),)
        return (*made.tools, _status_tool(run), *messages)

    async def end_session(self, run: RunContext) -> None:
        """Ends the commands that a session left running."""
        await self._commands.end(run)

    def _options(self, run: RunContext) -> ToolOptions:
        return settings.tool_options(self._configuration, run.agent_id)

    def _rules(self, run: RunContext) -> ExecRules:
        wanted = self._options(run).exec
        return ExecRules(
            security=wanted.security or "full",
            ask=wanted.ask or "off",
            ask_fallback=wanted.ask_fallback or "full",
        )


def _status_tool(run: SessionRun) -> Tool:
    @tool(effect="read", idempotent=True)
    def session_status() -> JsonObject:
        """Look up this conversation: its key, model, tokens, and what runs in it."""
        return run.status()

    return session_status


def _message_tool(run: SessionRun, outbox: Outbox, options: ToolOptions) -> Tool:
    """`message`: to whoever asked, and to whom the configuration allows."""
    allowed = options.message.targets or ()

    @tool(effect="write")
    async def message(
        text: str,
        action: Literal["send", "edit"] = "send",
        channel: str = "",
        target: str = "",
        messageId: str = "",
    ) -> JsonObject:
        """Send a message to a person now, or change one that you sent.

        What you answer at the end is sent by itself: use this for what cannot wait, or is for
        somebody else. Do not say the same again at the end.

        Args:
            text: What to say.
            action: `send`, or `edit` with `messageId`.
            channel: By which channel; the one you were asked by, if it is left out.
            target: To whom; whoever asked, if it is left out.
            messageId: The message to change.
        """
        to = _destination(run, channel, target, allowed)
        if not text.strip():
            raise ToolProblem("invalid", "the message is empty")
        if action == "edit":
            if not messageId:
                raise ToolProblem("invalid", "to change a message, its messageId has to be given")
            sent = await outbox.edit(*to, messageId, text, session_key=run.session.key)
        else:
            sent = await outbox.send(*to, text, session_key=run.session.key)
        if sent.status == "failed":
            raise ToolProblem("not_sent", f"it was not sent: {sent.error}")
        if sent.status == "sent":
            run.sent.add(sent.text, visible=to == (run.request.channel, run.request.target))
        return {"status": sent.status, "messageId": sent.message_id, "channel": to[0]}

    return message


def _destination(
    run: SessionRun, channel: str, target: str, allowed: tuple[str, ...]
) -> tuple[str, str]:
    """Channel and target of a message.

    Raises:
        ToolProblem: There is none, or it may not be sent there.
    """
    here = (run.request.channel, run.request.target)
    to = (channel or here[0], target or (here[1] if channel in ("", here[0]) else ""))
    if to == here and all(here):
        return to
    if not all(to):
        text = "say by which channel and to whom: this run was not asked by a channel"
        raise ToolProblem("invalid", text)
    if not any(fnmatch.fnmatchcase(":".join(to), pattern) for pattern in allowed):
        text = f"messages to {to[0]}:{to[1]} are not allowed (tools.message.targets)"
        raise ToolProblem("not_allowed", text)
    return to

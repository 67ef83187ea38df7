"""Slash commands in messages: `/new`, `/stop`, `/status` and others.

A text that begins with an unknown command goes to the model, because paths begin with a slash too.
"""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.requests import AgentRequest
from clawmode.config.operations import Queue
from clawmode.exceptions import ClawmodeError
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.queue import QueueSettings, parse_override, settings_for
from clawmode.sessions.store import Session
from clawmode.text import escape, one_line
from clawmode.tools.approvals import Question
from clawmode.tools.questions import DECISIONS
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.agent.runtime import AgentRuntime

MAX_LISTED = 10
MAX_INPUT_CHARS = 2_000
MAX_TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A parsed command.

    Attributes:
        begins: True if the command starts a conversation and its argument is the first message.
        at_once: True if the command does not wait for earlier messages.
    """

    name: str
    arguments: str
    takes_long: bool = False
    begins: bool = False
    at_once: bool = False


Handler = Callable[["SlashCommands", str, InboundMessage, Session], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the table of commands.

    Attributes:
        for_operators: True if only operators may use the command.
    """

    usage: str
    help: str
    run: Handler
    for_operators: bool = False
    takes_long: bool = False


class SlashCommands:
    """Carries out the commands.

    Args:
        runtime: Has the sessions and runs.
        queue: The queue settings of sessions that have no override.
        find_model: Finds a model by its name; raises `ClawmodeError` if there is none.
        stop: Drops the waiting messages of a session and aborts its runs; returns their number.
        waiting: Returns the number of waiting messages of a session.
        operator: The scripts of the operator.
    """

    def __init__(
        self,
        *,
        runtime: "AgentRuntime",
        queue: Queue,
        find_model: Callable[[str], object],
        stop: Callable[[str], int],
        waiting: Callable[[str], int],
        operator: OperatorHooks | None = None,
    ) -> None:
        self._runtime = runtime
        self.queue = queue
        self._find_model = find_model
        self._operator = operator
        self._stop_all = stop
        self._waiting = waiting

    def parse(self, text: str) -> SlashCommand | None:
        """Returns the command in a text, or None."""
        word, *rest = text.split(maxsplit=1) or [""]
        name = word[1:].lower()
        if not word.startswith("/") or name not in COMMANDS:
            return None
        entry = COMMANDS[name]
        begins = name in ("new", "reset")
        return SlashCommand(name, "".join(rest).strip(), entry.takes_long, begins, name == "stop")

    async def run(self, given: SlashCommand, message: InboundMessage, session: Session) -> str:
        """Carries out a command, and returns the reply for the sender."""
        entry = COMMANDS[given.name]
        if entry.for_operators and not message.operator:
            return f"/{given.name} is for operators."
        try:
            notes = await self._run_scripts(given, message, session)
            reply = await entry.run(self, given.arguments, message, session)
        except ClawmodeError as error:
            return f"/{given.name}: {error}"
        return "\n".join((*notes, reply))

    async def _run_scripts(
        self, given: SlashCommand, message: InboundMessage, session: Session
    ) -> list[str]:
        if self._operator is None or not self._operator.has(f"command:{given.name}"):
            return []
        about: JsonObject = {
            "arguments": given.arguments,
            "sessionKey": session.key,
            "sessionId": session.id,
            "agentId": session.agent_id,
            "channel": message.channel,
            "sender": message.sender,
        }
        return await self._operator.command(given.name, about)

    # ---- The commands ----

    async def _help(self, arguments: str, message: InboundMessage, session: Session) -> str:
        return "\n".join(f"{entry.usage}  {entry.help}" for entry in COMMANDS.values())

    async def _new(self, arguments: str, message: InboundMessage, session: Session) -> str:
        self._stop_all(session.key)
        made = await self._runtime.care.reset(session, "new")
        return f"Started a new conversation ({made.id[:8]})."

    async def _reset(self, arguments: str, message: InboundMessage, session: Session) -> str:
        self._stop_all(session.key)
        await self._runtime.care.reset(session, "reset")
        return "The conversation was reset."

    async def _stop(self, arguments: str, message: InboundMessage, session: Session) -> str:
        waiting = self._waiting(session.key)
        return tell_stopped(self._stop_all(session.key), waiting) or "Nothing runs."

    async def _compact(self, arguments: str, message: InboundMessage, session: Session) -> str:
        # Instructions of a guest would become part of the prompt for everyone in the session.
        instructions = arguments if message.operator else ""
        done = await self._runtime.care.compact(session, instructions)
        if done is None:
            return "There is nothing to compact."
        return f"Summarized {done.messages} messages: {done.before} tokens became {done.after}."

    async def _status(self, arguments: str, message: InboundMessage, session: Session) -> str:
        runtime = self._runtime
        resolved = await runtime.resolve(AgentRequest(session_key=session.key), session)
        model = resolved.models[0]
        runs = runtime.under_way(session.key)
        questions = [it for it in runtime.approvals.pending() if it.run.session_key == session.key]
        shown = questions if message.operator else []
        usage = session.usage
        lines = [
            f"session {session.key} ({session.id[:8]})",
            f"model {model.provider}/{model.name}, thinking {resolved.agent.thinking}",
            f"tokens {usage.input:,} in, {usage.output:,} out",
            f"runs {len(runs)}, waiting messages {self._waiting(session.key)}",
            f"queue {_words(self._settings(message, session))}",
            *([f"open questions {len(questions)}"] if questions else []),
            *(f"{describe(it)}\n/approve {it.id} …" for it in shown[:MAX_LISTED]),
        ]
        return "\n".join(lines)

    async def _set_queue(self, arguments: str, message: InboundMessage, session: Session) -> str:
        if not arguments:
            return f"queue {_words(self._settings(message, session))}"
        try:
            override = parse_override(arguments)
        except ValueError as error:
            return f"/queue: {error}"
        before = session.data.get("queue")
        known = before if isinstance(before, dict) else {}
        changed = None if override is None else {**known, **override}
        session = await self._runtime.sessions.touch(session.id, data={"queue": changed})
        return f"queue {_words(self._settings(message, session))}"

    async def _model(self, arguments: str, message: InboundMessage, session: Session) -> str:
        if not arguments:
            request = AgentRequest(session_key=session.key)
            resolved = await self._runtime.resolve(request, session)
            return ", then ".join(f"{it.provider}/{it.name}" for it in resolved.models)
        name = "" if arguments.lower() in ("default", "reset") else arguments
        if name:
            self._find_model(name)
        await self._runtime.sessions.touch(session.id, model=name)
        return f"This conversation now uses {name or 'the model of its agent'}."

    async def _approve(self, arguments: str, message: InboundMessage, session: Session) -> str:
        approvals = self._runtime.approvals
        words = arguments.split()
        if not words:
            waiting = approvals.pending()[:MAX_LISTED]
            lines = (f"{it.id}  {describe(it)}" for it in waiting)
            return "\n\n".join(lines) if waiting else "No question is open."
        decision = next((it for it in DECISIONS if it == words[-1].lower()), None)
        if len(words) != 2 or decision is None:
            return f"/approve <id> {'|'.join(DECISIONS)}"
        if not approvals.resolve(words[0], decision, message.sender):
            return f"No question {words[0][:40]!r} is open."
        return f"{words[0]}: {decision}."

    def _settings(self, message: InboundMessage, session: Session) -> QueueSettings:
        return settings_for(self.queue, message.channel, session.data.get("queue"))


def describe(question: Question) -> str:
    """Describes a question completely: nobody should allow what was not shown."""
    given = json.dumps(question.input, ensure_ascii=False, indent=1)
    if len(given) > MAX_INPUT_CHARS:
        rest = len(given) - MAX_INPUT_CHARS
        given = (
            f"{given[:MAX_INPUT_CHARS]}… ({rest} more characters: answer at a place that shows all)"
        )
    about = f"{question.tool_id} with {escape(given, chr(10))}"
    asker = f"agent {question.run.agent_id}, session {question.run.session_key}"
    always = f"allow-always remembers: {question.always}"
    title = one_line(question.title, MAX_TITLE_CHARS)
    return f"Approval needed ({question.severity}): {title}\n{about}\n{asker}\n{always}"


def tell_stopped(count: int, waiting: int) -> str:
    """Describes what a stop did; empty if there was nothing to stop.

    Args:
        count: The number of runs and messages that were stopped.
        waiting: The number of messages that waited before.
    """
    dropped = min(waiting, count)
    messages = "1 waiting message was" if dropped == 1 else f"{dropped} waiting messages were"
    return " ".join(
        (*(["Stopped."] if count > dropped else ()), *([f"{messages} dropped."] if dropped else ()))
    )


def _words(settings: QueueSettings) -> str:
    wait = f"debounce {settings.debounce_seconds:g}s"
    return f"{settings.mode}, {wait}, cap {settings.cap}, drop {settings.drop}"


COMMANDS: dict[str, Entry] = {
    "new": Entry("/new [text]", "start a new conversation", SlashCommands._new),
    "reset": Entry("/reset [text]", "forget this conversation", SlashCommands._reset),
    "stop": Entry("/stop", "stop the run and drop waiting messages", SlashCommands._stop),
    "compact": Entry(
        "/compact [instructions]",
        "summarize the conversation",
        SlashCommands._compact,
        takes_long=True,
    ),
    "status": Entry("/status", "show the session, its model and its queue", SlashCommands._status),
    "queue": Entry(
        "/queue [mode debounce:0.5s cap:20 drop:old | default]",
        "show or change what happens to messages during a run",
        SlashCommands._set_queue,
        for_operators=True,
    ),
    "model": Entry(
        "/model [provider/model | default]",
        "show or change the model",
        SlashCommands._model,
        for_operators=True,
    ),
    "approve": Entry(
        "/approve [id allow-once|allow-always|deny]",
        "list or answer open questions",
        SlashCommands._approve,
        for_operators=True,
    ),
    "help": Entry("/help", "list the commands", SlashCommands._help),
}

"""Slash commands: what people say to us, and not to the model.

A text that begins with the name of no command is for the model: paths begin like that too.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.requests import AgentRequest
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.operations import Queue
from clawmode.exceptions import ClawmodeError
from clawmode.messaging.channel import Inbound
from clawmode.messaging.queue import QueueSettings, parse_override, settings_for
from clawmode.sessions.store import Session
from clawmode.text import escape, one_line
from clawmode.tools.approvals import Decision, Question
from clawmode.types import JsonObject

DECISIONS: tuple[Decision, ...] = get_args(Decision)
MAX_LISTED = 10
MAX_INPUT_CHARS = 2_000
MAX_TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Slash:
    """A command that somebody gave.

    Attributes:
        begins: Whether what stands behind it is said in the conversation that it begins.
        at_once: Whether it does not wait for messages before it.
    """

    name: str
    arguments: str
    takes_long: bool = False
    begins: bool = False
    at_once: bool = False


Handler = Callable[["SlashCommands", str, Inbound, Session], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that there is.

    Attributes:
        for_operators: Whether it changes what others decided, and not everyone may give it.
    """

    usage: str
    help: str
    run: Handler
    for_operators: bool = False
    takes_long: bool = False


class SlashCommands:
    """Carries commands out.

    Args:
        runtime: Whose sessions and runs they are about.
        queue: What is done with messages if a session says nothing.
        find_model: Looks a model up by its name; raises `ClawmodeError` if there is none.
        stop: Drops what waits in a session, and stops what runs; how many that were.
        waiting: How many messages wait in a session.
        operator: Scripts of the operator's.
    """

    def __init__(
        self,
        *,
        runtime: AgentRuntime,
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

    def parse(self, text: str) -> Slash | None:
        """The command that a text is, if it is one."""
        word, *rest = text.split(maxsplit=1) or [""]
        name = word[1:].lower()
        if not word.startswith("/") or name not in COMMANDS:
            return None
        entry = COMMANDS[name]
        begins = name in ("new", "reset")
        return Slash(name, "".join(rest).strip(), entry.takes_long, begins, name == "stop")

    async def run(self, given: Slash, message: Inbound, session: Session) -> str:
        """Carries a command out; what whoever gave it is to read."""
        entry = COMMANDS[given.name]
        if entry.for_operators and not message.operator:
            return f"/{given.name} is for operators."
        try:
            said = await self._tell_operator(given, message, session)
            reply = await entry.run(self, given.arguments, message, session)
        except ClawmodeError as error:
            return f"/{given.name}: {error}"
        return "\n".join((*said, reply))

    async def _tell_operator(self, given: Slash, message: Inbound, session: Session) -> list[str]:
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

    # ---- Each of them ----

    async def _help(self, arguments: str, message: Inbound, session: Session) -> str:
        return "\n".join(f"{entry.usage}  {entry.help}" for entry in COMMANDS.values())

    async def _new(self, arguments: str, message: Inbound, session: Session) -> str:
        self._stop_all(session.key)
        made = await self._runtime.care.reset(session, "new")
        return f"A new conversation has begun ({made.id[:8]})."

    async def _reset(self, arguments: str, message: Inbound, session: Session) -> str:
        self._stop_all(session.key)
        await self._runtime.care.reset(session, "reset")
        return "The conversation was reset."

    async def _stop(self, arguments: str, message: Inbound, session: Session) -> str:
        waiting = self._waiting(session.key)
        return tell_stopped(self._stop_all(session.key), waiting) or "Nothing runs."

    async def _compact(self, arguments: str, message: Inbound, session: Session) -> str:
        # What a guest wishes would stand among what the model is told of everyone.
        wishes = arguments if message.operator else ""
        done = await self._runtime.care.compact(session, wishes)
        if done is None:
            return "There is nothing to shorten."
        return (
            f"{done.messages} messages were summed up: {done.before} tokens are {done.after} now."
        )

    async def _status(self, arguments: str, message: Inbound, session: Session) -> str:
        runtime = self._runtime
        settings = await runtime.settings(AgentRequest(session_key=session.key), session)
        model = settings.models[0]
        runs = runtime.under_way(session.key)
        questions = [it for it in runtime.approvals.pending() if it.run.session_key == session.key]
        shown = questions if message.operator else []
        usage = session.usage
        lines = [
            f"session {session.key} ({session.id[:8]})",
            f"model {model.provider}/{model.name}, thinking {settings.thinking}",
            f"tokens {usage.input:,} in, {usage.output:,} out",
            f"runs {len(runs)}, messages that wait {self._waiting(session.key)}",
            f"queue {_words(self._settings(message, session))}",
            *([f"questions that wait {len(questions)}"] if questions else []),
            *(f"{describe(it)}\n/approve {it.id} …" for it in shown[:MAX_LISTED]),
        ]
        return "\n".join(lines)

    async def _set_queue(self, arguments: str, message: Inbound, session: Session) -> str:
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

    async def _model(self, arguments: str, message: Inbound, session: Session) -> str:
        if not arguments:
            request = AgentRequest(session_key=session.key)
            settings = await self._runtime.settings(request, session)
            return ", then ".join(f"{it.provider}/{it.name}" for it in settings.models)
        name = "" if arguments.lower() in ("default", "reset") else arguments
        if name:
            self._find_model(name)
        await self._runtime.sessions.touch(session.id, model=name)
        return f"This conversation goes on with {name or 'the model of its agent'}."

    async def _approve(self, arguments: str, message: Inbound, session: Session) -> str:
        approvals = self._runtime.approvals
        words = arguments.split()
        if not words:
            waiting = approvals.pending()[:MAX_LISTED]
            lines = (f"{it.id}  {describe(it)}" for it in waiting)
            return "\n\n".join(lines) if waiting else "Nothing waits for approval."
        decision = next((it for it in DECISIONS if it == words[-1].lower()), None)
        if len(words) != 2 or decision is None:
            return f"/approve <id> {'|'.join(DECISIONS)}"
        if not approvals.resolve(words[0], decision):
            return f"No question {words[0][:40]!r} is open."
        return f"{words[0]}: {decision}."

    def _settings(self, message: Inbound, session: Session) -> QueueSettings:
        return settings_for(self.queue, message.channel, session.data.get("queue"))


def describe(question: Question) -> str:
    """All that somebody decides about, in words: what was not seen is not to be allowed."""
    given = json.dumps(question.input, ensure_ascii=False, indent=1)
    if len(given) > MAX_INPUT_CHARS:
        rest = len(given) - MAX_INPUT_CHARS
        given = f"{given[:MAX_INPUT_CHARS]}… ({rest} more characters: decide where all is shown)"
    about = f"{question.tool_id} with {escape(given, chr(10))}"
    asker = f"agent {question.run.agent_id}, session {question.run.session_key}"
    always = f"allow-always remembers: {question.always}"
    title = one_line(question.title, MAX_TITLE_CHARS)
    return f"Approval needed ({question.severity}): {title}\n{about}\n{asker}\n{always}"


def tell_stopped(count: int, waiting: int) -> str:
    """Says in words what a stop did; empty if there was nothing to stop.

    Args:
        count: How many runs and messages were stopped.
        waiting: How many messages waited before.
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
    "new": Entry("/new [text]", "begin a new conversation", SlashCommands._new),
    "reset": Entry("/reset [text]", "forget this conversation", SlashCommands._reset),
    "stop": Entry("/stop", "stop what runs, and drop what waits", SlashCommands._stop),
    "compact": Entry(
        "/compact [wishes]", "sum up what was said", SlashCommands._compact, takes_long=True
    ),
    "status": Entry("/status", "what runs here", SlashCommands._status),
    "queue": Entry(
        "/queue [mode debounce:0.5s cap:20 drop:old | default]",
        "what becomes of messages that come meanwhile",
        SlashCommands._set_queue,
        for_operators=True,
    ),
    "model": Entry(
        "/model [provider/model | default]", "who answers", SlashCommands._model, for_operators=True
    ),
    "approve": Entry(
        "/approve [id allow-once|allow-always|deny]",
        "decide what may run",
        SlashCommands._approve,
        for_operators=True,
    ),
    "help": Entry("/help", "this", SlashCommands._help),
}

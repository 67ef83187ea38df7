"""`ScriptedModel`: a model that plays a script in this process, for tests and examples.

    model = ScriptedModel([
        Turn("Let me add.", call("exec", {"code": "return 1 + 2"})),
        lambda request: Turn(call("wait", {"runId": request.last_result()["runId"]})),
        Turn("It is 3."),
    ])

The first request gets the first turn, and so on; the model records its requests. `ScriptServer`
plays the same scripts over HTTP.
"""

import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import field
from typing import Any, TypeAlias

import anyio

from clawmode.code_mode.results import read_compact
from clawmode.messages import (
    AssistantMessage,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from clawmode.models.base import (
    CallStart,
    ErrorKind,
    MessageEnd,
    ModelError,
    ModelEvent,
    ModelLimits,
    ModelRequest,
    TextDelta,
    TextEnd,
    ThinkingDelta,
    read_arguments,
)
from clawmode.types import JsonObject, dataclass

PIECE = 11
"""Characters per event: a real stream splits text anywhere, also inside of words and JSON."""
CHARACTERS_PER_TOKEN = 4

# ---- The parts of a turn ----


@dataclass(frozen=True, slots=True)
class Say:
    """Text that the model writes."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """Thinking of the model; redacted thinking if the text is empty.

    Attributes:
        signature: The signature that the provider expects back.
    """

    text: str
    signature: str = "signed"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model.

    Attributes:
        arguments: An object, a string that is sent unchanged, or a function of the request that
            returns one of these.
        id: The id of the call; generated if it is empty.
    """

    name: str
    arguments: "JsonObject | str | Callable[[ScriptRequest], JsonObject | str]"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Interrupts the stream for some seconds, or until an event is set."""

    until: float | anyio.Event

    async def wait(self) -> None:
        if isinstance(self.until, anyio.Event):
            await self.until.wait()
        else:
            await anyio.sleep(self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The exact response of a server."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Part: TypeAlias = Say | Think | Call | Pause


def text(words: str) -> Say:
    """Returns a part in which the model writes text."""
    return Say(words)


def think(words: str = "", signature: str = "signed") -> Think:
    """Returns a part in which the model thinks."""
    return Think(words, signature)


def call(
    name: str,
    arguments: "JsonObject | str | Callable[[ScriptRequest], JsonObject | str] | None" = None,
    *,
    id: str = "",
) -> Call:
    """Returns a part in which the model calls a tool."""
    return Call(name, {} if arguments is None else arguments, id)


def pause(until: float | anyio.Event) -> Pause:
    """Returns a part that interrupts the stream for some seconds, or until an event is set."""
    return Pause(until)


class Turn:
    """The answer to one request.

    Args:
        parts: Text, thinking, calls and pauses in order; a `str` is text.
        stop: The stop reason; derived from the parts if it is None.
        usage: The token usage; estimated if it is None.
        delay: Seconds before each event.
        error: An error after the parts, or instead of an answer if there are no parts. A server
            makes the client see the error: `connection` closes the connection, `timeout` sends
            nothing more, `garbage` sends an invalid event, others are sent in the API's format.
        raw: The exact response of a server, instead of everything else.
    """

    def __init__(
        self,
        *parts: str | Part,
        stop: StopReason | None = None,
        usage: Usage | None = None,
        delay: float = 0.0,
        error: ErrorKind | ModelError | None = None,
        raw: Raw | None = None,
    ) -> None:
        self.parts: tuple[Part, ...] = tuple(
            Say(part) if isinstance(part, str) else part for part in parts
        )
        self.stop: StopReason = stop or ("tool_calls" if self.calls else "stop")
        self.usage = usage
        self.delay = delay
        if isinstance(error, str):
            error = ModelError(error, f"the script says: {error}")
        self.error = error
        self.raw = raw

    @property
    def calls(self) -> list[Call]:
        """The parts that are tool calls."""
        return [part for part in self.parts if isinstance(part, Call)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """A request as scripts see it, the same for all APIs.

    Attributes:
        number: The number of the request, from 1.
        said: The text of the last user message.
        results: The text of tool results by call id, oldest first; None if there is no result.
    """

    number: int
    system: str = ""
    said: str = ""
    tool_names: tuple[str, ...] = ()
    results: Mapping[str, str | None] = field(default_factory=dict)

    def last_result(self) -> Any:
        """Returns the newest tool result, parsed; its text if it cannot be parsed.

        The result of a program is an object, with the output of the program as one text.
        """
        newest = next(
            (result for result in reversed([*self.results.values()]) if result is not None), "null"
        )
        for parse in (json.loads, read_compact):
            with suppress(ValueError):
                return parse(newest)
        return newest


Reaction: TypeAlias = Callable[[ScriptRequest], "Turn | str | Awaitable[Turn | str]"]
Script: TypeAlias = Sequence[Turn | str | Reaction] | Reaction
"""One turn, or function that returns a turn, per request; or one function for all requests."""


# ---- Playing a script ----


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn with its functions of the request called, and ids and usage filled in."""

    number: int
    turn: Turn
    parts: tuple[Say | Think | Pause | ToolCall, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """The text of all parts together."""
        return "".join(part.text for part in self.parts if isinstance(part, Say))


class Player:
    """Returns the turns of a script one after the other."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._number = 0

    def count(self) -> int:
        """Counts a request; returns its number."""
        self._number += 1
        return self._number

    async def play(self, request: ScriptRequest, size: int) -> PlayedTurn:
        """Returns the turn for a request.

        Args:
            request: The request.
            size: The size of the request in characters, to estimate its tokens.

        Raises:
            ModelError: The script has no more turns.
        """
        if callable(self._script):
            found: Turn | str | Reaction = self._script
        elif request.number <= len(self._script):
            found = self._script[request.number - 1]
        else:
            raise ModelError(
                "invalid_request",
                f"the script has {len(self._script)} turns, and this is request {request.number}",
            )
        if callable(found):
            made = found(request)
            found = await made if inspect.isawaitable(made) else made
        turn = Turn(found) if isinstance(found, str) else found
        parts: list[Say | Think | Pause | ToolCall] = []
        for index, part in enumerate(turn.parts):
            if isinstance(part, Call):
                given = part.arguments(request) if callable(part.arguments) else part.arguments
                part = ToolCall(part.id or f"call_{request.number}_{index}", part.name, given)
            parts.append(part)
        written = sum(len(_text_of(part)) for part in parts)
        estimate = Usage(size // CHARACTERS_PER_TOKEN, written // CHARACTERS_PER_TOKEN + 1)
        return PlayedTurn(request.number, turn, tuple(parts), turn.usage or estimate)


def _text_of(part: Say | Think | Pause | ToolCall) -> str:
    if isinstance(part, ToolCall):
        return arguments_text(part)
    return "" if isinstance(part, Pause) else part.text


def arguments_text(part: ToolCall) -> str:
    """Returns the arguments of a call as the text that a model would write."""
    return part.arguments if isinstance(part.arguments, str) else json.dumps(part.arguments)


def pieces(words: str) -> Iterator[str]:
    """Splits a text into the pieces of a stream."""
    return (words[at : at + PIECE] for at in range(0, len(words), PIECE))


class ScriptedModel:
    """A `Model` that plays a script.

    Attributes:
        requests: The requests so far, oldest first.
    """

    def __init__(
        self,
        script: Script,
        *,
        provider: str = "scripted",
        name: str = "scripted",
        limits: ModelLimits | None = None,
    ) -> None:
        self.provider = provider
        self.name = name
        self.limits = limits or ModelLimits()
        self.requests: list[ModelRequest] = []
        self._player = Player(script)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Plays the next turn. See `Model.stream`."""
        self.requests.append(request)
        said = ""
        results: dict[str, str | None] = {}
        for message in request.messages:
            if isinstance(message, UserMessage):
                said = "".join(part.text for part in message.content if isinstance(part, Text))
            elif isinstance(message, ToolMessage):
                results[message.call_id] = message.text
            else:
                results |= dict.fromkeys((part.id for part in message.calls), None)
        view = ScriptRequest(
            number=self._player.count(),
            system=request.system,
            said=said,
            tool_names=tuple(tool.name for tool in request.tools),
            results=results,
        )
        played = await self._player.play(view, len(str(request)))
        if played.turn.raw is not None:
            raise ModelError("garbage", "`raw` needs a ScriptServer: ScriptedModel has no HTTP")
        if played.turn.error is not None and not played.parts:
            raise played.turn.error
        async with aclosing(self._events(played)) as events:
            yield events

    async def _events(self, played: PlayedTurn) -> AsyncGenerator[ModelEvent, None]:
        for part in played.parts:
            if isinstance(part, Pause):
                await part.wait()
                continue
            if isinstance(part, ToolCall):
                yield CallStart(part.name)
            for piece in pieces(_text_of(part)):
                # Also without a delay: other tasks run between two events, as with a real stream.
                await anyio.sleep(played.turn.delay)
                if isinstance(part, Say):
                    yield TextDelta(piece)
                elif isinstance(part, Think):
                    yield ThinkingDelta(piece)
            if isinstance(part, Say):
                yield TextEnd(part.text)
        if played.turn.error is not None:
            raise played.turn.error
        yield MessageEnd(self._message(played))

    def _message(self, played: PlayedTurn) -> AssistantMessage:
        content: list[Text | Thinking | ToolCall] = []
        for part in played.parts:
            if isinstance(part, Say):
                content.append(Text(part.text))
            elif isinstance(part, Think):
                content.append(Thinking(part.text, {"signature": part.signature}))
            elif isinstance(part, ToolCall):
                arguments = read_arguments(arguments_text(part))
                content.append(ToolCall(part.id, part.name, arguments))
        return AssistantMessage(
            content=tuple(content),
            provider=self.provider,
            model=self.name,
            usage=played.usage,
            stop=played.turn.stop,
        )

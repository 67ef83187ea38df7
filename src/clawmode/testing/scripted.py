"""A model that plays a script, in this process. For tests, examples and the demo.

    model = ScriptedModel([
        Turn("Let me add.", call("exec", {"code": "return 1 + 2"})),
        lambda request: Turn(call("wait", {"runId": request.last_result()["runId"]})),
        Turn("It is 3."),
    ])

The first request gets the first turn, and so on; what was asked is kept. The same script is played
over a real wire by `script_server`.
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
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio

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
    CallBegun,
    ErrorKind,
    Finished,
    ModelError,
    ModelEvent,
    ModelLimits,
    ModelRequest,
    TextDelta,
    TextEnd,
    ThinkingDelta,
    read_arguments,
)
from clawmode.types import JsonObject

PIECE = 11
"""Characters at a time: a real stream breaks text anywhere, inside of words and JSON."""
CHARACTERS_PER_TOKEN = 4

# ---- What a turn is made of ----


@dataclass(frozen=True, slots=True)
class Say:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """Thoughts; without words, ones that the model hides.

    Attributes:
        signature: What the provider wants to see again.
    """

    text: str
    signature: str = "signed"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    Attributes:
        arguments: An object, a text that is to be sent as it is, or what makes one of them of the
            request.
        id: Made up if it is empty.
    """

    name: str
    arguments: "JsonObject | str | Callable[[ScriptRequest], JsonObject | str]"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing comes for some seconds, or until something happens."""

    until: float | anyio.Event

    async def wait(self) -> None:
        """Waits."""
        if isinstance(self.until, anyio.Event):
            await self.until.wait()
        else:
            await anyio.sleep(self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What a server answers, byte by byte."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Part: TypeAlias = Say | Think | Call | Pause


def text(words: str) -> Say:
    """The model says something."""
    return Say(words)


def think(words: str = "", signature: str = "signed") -> Think:
    """The model thinks something."""
    return Think(words, signature)


def call(
    name: str,
    arguments: "JsonObject | str | Callable[[ScriptRequest], JsonObject | str] | None" = None,
    *,
    id: str = "",
) -> Call:
    """The model calls a tool."""
    return Call(name, {} if arguments is None else arguments, id)


def pause(until: float | anyio.Event) -> Pause:
    """The model takes its time."""
    return Pause(until)


class Turn:
    """What the model does in answer to one request.

    Args:
        parts: What it says, thinks and calls, in this order; a `str` is what it says.
        stop: Why it stops; made out from the parts if it is None.
        usage: What it cost; estimated if it is None.
        delay: Seconds before each piece.
        error: What goes wrong after the parts, or instead of an answer if there are none. A server
            does what leads to it: `connection` cuts the line, `timeout` goes silent, `garbage`
            talks nonsense, and all others are told in the words of the API.
        raw: What a server answers instead of all this.
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
        """The calls among the parts."""
        return [part for part in self.parts if isinstance(part, Call)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """What a script can see of a request, whatever way it came.

    Attributes:
        number: From 1.
        said: The user's last words.
        results: What tools answered, by the id of the call, oldest first. None: nothing yet.
    """

    number: int
    system: str = ""
    said: str = ""
    tool_names: tuple[str, ...] = ()
    results: Mapping[str, str | None] = field(default_factory=dict)

    def last_result(self) -> Any:
        """The newest tool result, read as JSON; the words themselves if it is none."""
        newest = next((it for it in reversed([*self.results.values()]) if it is not None), "null")
        try:
            return json.loads(newest)
        except ValueError:
            return newest


Reaction: TypeAlias = Callable[[ScriptRequest], "Turn | str | Awaitable[Turn | str]"]
Script: TypeAlias = Sequence[Turn | str | Reaction] | Reaction
"""Turns, one for each request, some of them made of the request; or one reaction to all of them."""


# ---- Playing it ----


@dataclass(frozen=True, slots=True)
class Played:
    """A turn with everything made out that depended on the request."""

    number: int
    turn: Turn
    parts: tuple[Say | Think | Pause | ToolCall, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """All that it says."""
        return "".join(part.text for part in self.parts if isinstance(part, Say))


class Player:
    """Hands out the turns of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._number = 0

    def count(self) -> int:
        """The number of the next request."""
        self._number += 1
        return self._number

    async def play(self, request: ScriptRequest, size: int) -> Played:
        """The turn for a request.

        Args:
            request: The request.
            size: Its characters, to estimate what it cost.

        Raises:
            ModelError: The script is over.
        """
        turn = await self._turn(request)
        parts = tuple(
            _made(part, request, index) if isinstance(part, Call) else part
            for index, part in enumerate(turn.parts)
        )
        written = sum(len(_text_of(part)) for part in parts)
        estimate = Usage(size // CHARACTERS_PER_TOKEN, written // CHARACTERS_PER_TOKEN + 1)
        return Played(request.number, turn, parts, turn.usage or estimate)

    async def _turn(self, request: ScriptRequest) -> Turn:
        if callable(self._script):
            found: Turn | str | Reaction = self._script
        elif request.number <= len(self._script):
            found = self._script[request.number - 1]
        else:
            raise ModelError(
                "invalid_request",
                f"the script has {len(self._script)} turns and this is request {request.number}",
            )
        if callable(found):
            made = found(request)
            found = await made if inspect.isawaitable(made) else made
        return Turn(found) if isinstance(found, str) else found


def _made(part: Call, request: ScriptRequest, index: int) -> ToolCall:
    given = part.arguments(request) if callable(part.arguments) else part.arguments
    return ToolCall(part.id or f"call_{request.number}_{index}", part.name, given)


def _text_of(part: Say | Think | Pause | ToolCall) -> str:
    if isinstance(part, ToolCall):
        return arguments_text(part)
    return "" if isinstance(part, Pause) else part.text


def arguments_text(part: ToolCall) -> str:
    """The arguments of a call as they are written."""
    return part.arguments if isinstance(part.arguments, str) else json.dumps(part.arguments)


def pieces(words: str) -> Iterator[str]:
    """The text as it trickles in."""
    return (words[at : at + PIECE] for at in range(0, len(words), PIECE))


class ScriptedModel:
    """A `Model` that plays a script.

    Attributes:
        requests: What it was asked, oldest first.
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
        view = _view(request, self._player.count())
        played = await self._player.play(view, len(str(request)))
        if played.turn.raw is not None:
            raise ModelError("garbage", "only a server can play raw bytes")
        if played.turn.error is not None and not played.parts:
            raise played.turn.error
        async with aclosing(self._events(played)) as events:
            yield events

    async def _events(self, played: Played) -> AsyncGenerator[ModelEvent, None]:
        for part in played.parts:
            if isinstance(part, Pause):
                await part.wait()
                continue
            if isinstance(part, ToolCall):
                yield CallBegun(part.name)
            for piece in pieces(_text_of(part)):
                # Even without a delay others have their turn, as with a real stream.
                await anyio.sleep(played.turn.delay)
                if isinstance(part, Say):
                    yield TextDelta(piece)
                elif isinstance(part, Think):
                    yield ThinkingDelta(piece)
            if isinstance(part, Say):
                yield TextEnd(part.text)
        if played.turn.error is not None:
            raise played.turn.error
        yield Finished(self._message(played))

    def _message(self, played: Played) -> AssistantMessage:
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


def _view(request: ModelRequest, number: int) -> ScriptRequest:
    said = ""
    results: dict[str, str | None] = {}
    for message in request.messages:
        if isinstance(message, UserMessage):
            said = "".join(part.text for part in message.content if isinstance(part, Text))
        elif isinstance(message, ToolMessage):
            results[message.call_id] = message.text
        else:
            results |= dict.fromkeys((part.id for part in message.calls), None)
    return ScriptRequest(
        number=number,
        system=request.system,
        said=said,
        tool_names=tuple(tool.name for tool in request.tools),
        results=results,
    )

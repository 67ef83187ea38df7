"""The queue of a session: its limit, which messages are dropped, which messages form one turn.

This module is plain state; the inbox decides when to use it.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias, get_args

from clawmode.config.operations import Drop, Queue, QueueMode
from clawmode.messages import Image
from clawmode.messaging.channel import InboundMessage
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue, dataclass

MODES: tuple[QueueMode, ...] = get_args(QueueMode)
DROPS: tuple[Drop, ...] = get_args(Drop)
MAX_CAP = 1_000
MAX_DEBOUNCE = 60.0
MAX_SUMMARIES = 20
MAX_TURN_CHARS = 500_000
"""The most characters of messages that form one turn; a run accepts a mebibyte."""
SUMMARY_CHARS = 140

Party: TypeAlias = tuple[str, str, str, bool]

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How messages are handled that arrive during a run.

    Attributes:
        mode: `steer` passes the message to the run; `followup` makes it the next turn; `collect`
            makes one turn of all waiting messages; `interrupt` aborts the run.
        cap: The most messages that may wait.
        drop: Which message is dropped beyond the cap: the oldest, the newest, or the oldest with
            its first words kept for the model (`summarize`).
        debounce_seconds: How long to wait for further messages before a turn starts.
    """

    mode: QueueMode = "steer"
    cap: int = 20
    drop: Drop = "summarize"
    debounce_seconds: float = 0.5


def settings_for(configured: Queue, channel: str = "", override: JsonValue = None) -> QueueSettings:
    """Returns the settings for a message: of the session, else of its channel, else the default."""
    wait = configured.debounce_ms_by_channel.get(channel, configured.debounce_ms)
    made = QueueSettings(
        mode=configured.by_channel.get(channel, configured.mode),
        cap=configured.cap,
        drop=configured.drop,
        debounce_seconds=wait / 1000,
    )
    own: Any = _own(override)
    return replace(made, **own)


def _own(override: JsonValue) -> JsonObject:
    """Returns the valid parts of a session's override, which comes from a file."""
    if not isinstance(override, dict):
        return {}
    mode, cap, drop = override.get("mode"), override.get("cap"), override.get("drop")
    wait = override.get("debounceSeconds")
    made: JsonObject = {}
    if mode in MODES:
        made["mode"] = mode
    if drop in DROPS:
        made["drop"] = drop
    if isinstance(cap, int) and not isinstance(cap, bool) and 1 <= cap <= MAX_CAP:
        made["cap"] = cap
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= MAX_DEBOUNCE:
        made["debounce_seconds"] = wait
    return made


def parse_override(text: str) -> JsonObject | None:
    """Parses `/queue <mode> debounce:0.5s cap:25 drop:summarize`; None removes the override.

    Raises:
        ValueError: A word is not valid; the message lists the valid ones.
    """
    words = text.lower().split()
    if words in (["default"], ["reset"]):
        return None
    made: JsonObject = {}
    for word in words:
        key, colon, value = word.partition(":")
        if not colon and key in MODES:
            made["mode"] = key
        elif key == "drop" and value in DROPS:
            made["drop"] = value
        elif key == "cap" and value.isascii() and value.isdecimal() and 1 <= int(value) <= MAX_CAP:
            made["cap"] = int(value)
        elif key == "debounce" and (seconds := _duration(value)) is not None:
            made["debounceSeconds"] = seconds
        else:
            raise ValueError(
                f"{word[:40]!r} is not one of {', '.join(MODES)}, debounce:<0 to 60s>, "
                f"cap:<1 to {MAX_CAP}>, drop:<{'|'.join(DROPS)}>, default"
            )
    return made


def _duration(text: str) -> float | None:
    found = _SECONDS.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    return seconds if 0 <= seconds <= MAX_DEBOUNCE else None


# ---- Waiting messages ----


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A waiting message.

    Attributes:
        id: The id of the run that it starts, unless it joins other messages.
    """

    id: str
    message: InboundMessage
    settings: QueueSettings

    @property
    def party(self) -> Party:
        """The sender and the address of the reply: only messages of one party share a turn."""
        message = self.message
        return (message.channel, message.target, message.sender, message.operator)


@dataclass(slots=True)
class Batch:
    """The messages of one turn.

    Attributes:
        dropped: The first words of messages of the same party that were dropped.
        void: The batch was cancelled: a run that it has started meanwhile is aborted.
    """

    messages: tuple[QueuedMessage, ...]
    dropped: tuple[str, ...] = ()
    void: bool = False

    @property
    def id(self) -> str:
        return self.messages[-1].id

    @property
    def message(self) -> InboundMessage:
        """The last message, which decides the sender and the address of the reply."""
        return self.messages[-1].message

    @property
    def text(self) -> str:
        """The text for the model."""
        text = "\n\n".join(each.message.text for each in self.messages if each.message.text)
        if not self.dropped:
            return text
        lines = "\n".join(f"- {line}" for line in self.dropped)
        return f"[Too many messages waited. These earlier ones were dropped:]\n{lines}\n\n{text}"

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for each in self.messages for image in each.message.images)


@dataclass(slots=True)
class Line:
    """The waiting messages of one session, oldest first.

    Attributes:
        first, last: When the oldest and the newest message arrived; 0 for no debouncing.
        served: True while a task starts turns for the line.
        starting: The batch whose run is about to start.
    """

    waiting: deque[QueuedMessage] = field(default_factory=deque[QueuedMessage])
    first: float = 0.0
    last: float = 0.0
    served: bool = False
    starting: "Batch | None" = None
    _dropped: dict[Party, list[str]] = field(default_factory=dict[Party, list[str]])

    def add(self, queued: QueuedMessage) -> Sequence[QueuedMessage]:
        """Adds a message; returns the messages that were dropped, perhaps this one."""
        gone: list[QueuedMessage] = []
        self.waiting.append(queued)
        while len(self.waiting) > queued.settings.cap:
            newest = queued.settings.drop == "new"
            gone.append(self.waiting.pop() if newest else self.waiting.popleft())
        if queued.settings.drop == "summarize":
            for each in gone:
                lines = self._dropped.setdefault(each.party, [])
                lines.append(shorten(" ".join(each.message.text.split()), SUMMARY_CHARS))
                del lines[:-MAX_SUMMARIES]
        return gone

    def put_back(self, queued: Iterable[QueuedMessage]) -> None:
        """Puts messages back in front that a run accepted but did not read."""
        self.waiting.extendleft(reversed(list(queued)))

    def next(self) -> Batch | None:
        """Removes and returns the messages of the next turn."""
        if not self.waiting:
            return None
        taken = [self.waiting.popleft()]
        party = taken[0].party
        if taken[0].settings.mode == "collect":
            room = MAX_TURN_CHARS - len(taken[0].message.text)
            for each in [it for it in self.waiting if it.party == party]:
                room -= len(each.message.text)
                if room < 0:
                    break
                self.waiting.remove(each)
                taken.append(each)
        return Batch(tuple(taken), tuple(self._dropped.pop(party, ())))

    def remove(self, queued_id: str) -> bool:
        """Cancels a waiting message; returns False if it does not wait."""
        starting = self.starting
        if starting is not None and starting.id == queued_id and not starting.void:
            starting.void = True
            return True
        before = len(self.waiting)
        self.waiting = deque(each for each in self.waiting if each.id != queued_id)
        return len(self.waiting) < before

    def clear(self) -> int:
        """Cancels all messages and the run that is about to start; returns their number."""
        count = len(self.waiting)
        if self.starting is not None and not self.starting.void:
            self.starting.void = True
            count += 1
        self.waiting.clear()
        self._dropped.clear()
        return count

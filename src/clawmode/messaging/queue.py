"""Messages that wait for a session: how many may, which of them go, and what becomes one turn.

Plain state. When something is done with it is the inbox's affair.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, get_args

from clawmode.config.operations import Drop, Queue, QueueMode
from clawmode.messages import Image
from clawmode.messaging.channel import Inbound
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue

MODES: tuple[QueueMode, ...] = get_args(QueueMode)
DROPS: tuple[Drop, ...] = get_args(Drop)
MAX_CAP = 1_000
MAX_DEBOUNCE = 60.0
MAX_SUMMARIES = 20
MAX_TURN_CHARS = 500_000
"""Of messages that become one turn: a run takes a mebibyte."""
SUMMARY_CHARS = 140

Party: TypeAlias = tuple[str, str, str, bool]

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What is done with a message that comes while a run is under way.

    Attributes:
        mode: `steer` brings it into that run; `followup` makes it the next turn; `collect` makes
            one turn of all that wait; `interrupt` aborts the run for it.
        cap: How many may wait.
        drop: What goes if there are more: the oldest, the newest, or the oldest but for a line.
        debounce_seconds: How long to wait for more before a turn is made of those that wait.
    """

    mode: QueueMode = "steer"
    cap: int = 20
    drop: Drop = "summarize"
    debounce_seconds: float = 0.5


def settings_for(configured: Queue, channel: str = "", override: JsonValue = None) -> QueueSettings:
    """What holds for a message: what the session says, else the channel's, else everyone's."""
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
    """What of a session's override can be meant: it comes from a file."""
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
    """What `/queue <mode> debounce:0.5s cap:25 drop:summarize` says; None takes it back.

    Raises:
        ValueError: It cannot be meant; the message says what can.
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
                f"{word[:40]!r} is none of {', '.join(MODES)}, debounce:<0 to 60s>, "
                f"cap:<1 to {MAX_CAP}>, drop:<{'|'.join(DROPS)}>, default"
            )
    return made


def _duration(text: str) -> float | None:
    found = _SECONDS.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    return seconds if 0 <= seconds <= MAX_DEBOUNCE else None


# ---- What waits ----


@dataclass(frozen=True, slots=True)
class Queued:
    """A message that waits.

    Attributes:
        id: The run that it will be, if nothing comes before that.
    """

    id: str
    message: Inbound
    settings: QueueSettings

    @property
    def party(self) -> Party:
        """For whom it acts, and where it is answered: those of one party can be one turn."""
        message = self.message
        return (message.channel, message.target, message.sender, message.operator)


@dataclass(slots=True)
class Batch:
    """What becomes one turn.

    Attributes:
        dropped: Lines about messages of the same party that were given up.
        void: It was taken back: whatever it has become by then is stopped.
    """

    messages: tuple[Queued, ...]
    dropped: tuple[str, ...] = ()
    void: bool = False

    @property
    def id(self) -> str:
        """The run's."""
        return self.messages[-1].id

    @property
    def message(self) -> Inbound:
        """The last of them: whose turn it is, and where the answer goes."""
        return self.messages[-1].message

    @property
    def text(self) -> str:
        """What is said to the model."""
        said = "\n\n".join(each.message.text for each in self.messages if each.message.text)
        if not self.dropped:
            return said
        lines = "\n".join(f"- {line}" for line in self.dropped)
        return (
            f"[Too many messages waited; of those before this, the beginnings:]\n{lines}\n\n{said}"
        )

    @property
    def images(self) -> tuple[Image, ...]:
        """All of them."""
        return tuple(image for each in self.messages for image in each.message.images)


@dataclass(slots=True)
class Line:
    """The messages that wait for one session, oldest first.

    Attributes:
        first, last: When the oldest of them came, and the newest, by the inbox's clock; 0: they are
            not waited with.
        served: Whether somebody makes turns of them.
        starting: What is about to be a run, and is none yet.
    """

    waiting: deque[Queued] = field(default_factory=deque[Queued])
    first: float = 0.0
    last: float = 0.0
    served: bool = False
    starting: "Batch | None" = None
    _dropped: dict[Party, list[str]] = field(default_factory=dict[Party, list[str]])

    def add(self, queued: Queued) -> Sequence[Queued]:
        """One more; those that have to go for it, which may be itself."""
        gone: list[Queued] = []
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

    def put_back(self, queued: Iterable[Queued]) -> None:
        """Those that were taken for a run which has not read them: they come first."""
        self.waiting.extendleft(reversed(list(queued)))

    def next(self) -> Batch | None:
        """What the next turn is made of; it waits no more."""
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
        """Takes one back; False if it does not wait."""
        starting = self.starting
        if starting is not None and starting.id == queued_id and not starting.void:
            starting.void = True
            return True
        before = len(self.waiting)
        self.waiting = deque(each for each in self.waiting if each.id != queued_id)
        return len(self.waiting) < before

    def clear(self) -> int:
        """Takes all back, what is about to be a run too; how many that were."""
        count = len(self.waiting)
        if self.starting is not None and not self.starting.void:
            self.starting.void = True
            count += 1
        self.waiting.clear()
        self._dropped.clear()
        return count

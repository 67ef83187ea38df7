"""The last events of the gateway, for clients that reconnect and ask what they have missed."""

import json
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from clawmode.gateway.clients import EncodedEvent
from clawmode.types import JsonObject, JsonValue

MAX_EVENTS = 3_000
MAX_BYTES = 2 << 20
"""The most events that are kept, and the most memory that they take."""

MAX_EVENT_BYTES = 512 << 10
"""An event that takes more memory is not kept: clients that have missed it start anew."""

MAX_ANSWER_EVENTS, MAX_ANSWER_BYTES = 1_000, 1 << 20
"""The most that one answer returns. The client asks again for the rest."""

NOT_KEPT = frozenset({"tick", "shutdown", "runs.changed"})
"""Events that are of no use later: `runs.tree` has the state that `runs.changed` led to."""


class EventLog:
    """Numbers all events, and keeps the last of them in memory.

    Attributes:
        epoch: Identifies this log. The numbers of another process mean nothing here.
        at: The number of the last event.
    """

    def __init__(self) -> None:
        self.epoch = uuid.uuid4().hex
        self.at = 0
        self._kept: OrderedDict[int, EncodedEvent] = OrderedDict()
        self._slots: dict[str, int] = {}
        self._bytes = 0
        self._complete_after = 0

    @property
    def position(self) -> JsonObject:
        """The epoch and the number of the last event, as clients get them."""
        return {"epoch": self.epoch, "at": self.at}

    def add(
        self, event: EncodedEvent, *, slot: str = "", last: bool = False, keep: bool = True
    ) -> EncodedEvent:
        """Returns the event with its number, and keeps the event.

        Args:
            event: The event.
            slot: The event replaces the one before it with the same slot: it says all of that.
            last: Whether no other event with this slot will follow.
            keep: False if the event is of no use later.
        """
        self.at += 1
        event = replace(event, at=self.at)
        if slot and (old := self._slots.pop(slot, None)) is not None:
            self._remove(old)
        if keep and event.name not in NOT_KEPT:
            self._kept[self.at] = event
            self._bytes += sys.getsizeof(event.payload)
            if slot and not last:
                self._slots[slot] = self.at
            if sys.getsizeof(event.payload) > MAX_EVENT_BYTES:
                self._drop(len(self._kept))
            while len(self._kept) > MAX_EVENTS or self._bytes > MAX_BYTES:
                self._drop(1)
        return event

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._complete_after = next(iter(self._kept))
            self._remove(self._complete_after)

    def _remove(self, at: int) -> None:
        if (old := self._kept.pop(at, None)) is not None:
            self._bytes -= sys.getsizeof(old.payload)

    def since(self, epoch: str, at: int, wanted: Callable[[EncodedEvent], bool]) -> JsonObject:
        """Returns the wanted events after a number, as the answer of `events.since`.

        Args:
            epoch: The epoch of the number.
            at: The number of the last event that the client knows.
            wanted: Returns whether the client receives an event.
        """
        if epoch != self.epoch or not self._complete_after <= at <= self.at:
            return {"reset": True, **self.position}
        events: list[JsonValue] = []
        room, reached, more = MAX_ANSWER_BYTES, self.at, False
        for number, event in self._kept.items():
            if number <= at or not wanted(event):
                continue
            room -= sys.getsizeof(event.payload)
            if events and (room < 0 or len(events) == MAX_ANSWER_EVENTS):
                more = True
                break
            payload = json.loads(event.payload)
            events.append({"event": event.name, "payload": payload, "at": number})
            reached = number
        return {
            "reset": False,
            "events": events,
            "epoch": self.epoch,
            "at": reached if more else self.at,
            "more": more,
        }

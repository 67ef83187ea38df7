"""Sends the changes of the tree of runs to the clients that follow it, gathered for a moment."""

import logging
import math
from typing import TYPE_CHECKING

import anyio

from clawmode.exceptions import StoreUnavailable
from clawmode.gateway.clients import EncodedEvent
from clawmode.gateway.lone_programs import LonePrograms
from clawmode.gateway.run_tree import MAX_NODES, RunTree
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.code_mode.code_mode import CodeMode
    from clawmode.code_mode.stores import SnapshotStore
    from clawmode.gateway.gateway import Gateway

logger = logging.getLogger("clawmode.gateway")

GATHER_SECONDS = 0.1
"""How long changes are gathered before they are sent."""

MAX_EVENT_NODES = 500
"""The most nodes in one event."""

MAX_BEHIND = 1 << 20
"""Characters that wait for a follower. Then it misses changes, and is told to read the tree."""

BEHIND_SECONDS = 0.5
"""How often it is checked whether a slow follower has caught up."""

CHANGED = "runs.changed"


class RunFeed:
    """The tree of runs, and its followers.

    Args:
        gateway: The gateway, whose clients may be followers.

    Attributes:
        tree: The tree.
        lone: Programs of clients, which belong to no turn.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self.tree = RunTree(self._programs_of, lambda text: gateway.host.runtime.known.text(text))
        self.lone = LonePrograms(gateway)

    def _programs_of(self, run_id: str) -> "CodeMode | None":
        run = self._gateway.host.runtime.find(run_id)
        return self.lone.programs().get(run_id) if run is None else run.programs

    def programs(self) -> "list[CodeMode]":
        """Returns the open code modes of turns and of clients."""
        return [*self._gateway.host.runtime.programs(), *self.lone.programs().values()]

    async def restore(self, store: "SnapshotStore") -> None:
        """Adds the programs that an earlier process has parked."""
        try:
            listed = await store.cells(limit=MAX_NODES)
            left_out = await store.count_parked() - len(listed) if len(listed) == MAX_NODES else 0
            self.tree.restore(listed, left_out)
        except StoreUnavailable as error:
            logger.error("parked programs cannot be listed: %s", error)

    def publish_question(self, name: str, payload: JsonObject) -> None:
        """Sends an event about a question, and marks its call as waiting or as running again."""
        if name.endswith(".resolved"):
            self.tree.settle(str(payload["id"]))
        elif "callId" in payload:
            self.tree.ask("input" if name == "input.requested" else "approval", payload)
        self._gateway.broadcast(name, payload)

    async def serve(self) -> None:
        """Sends changes until it is cancelled."""
        seen = 0
        while True:
            behind = any(client.missed_runs for client in self._gateway.clients.values())
            with anyio.move_on_after(BEHIND_SECONDS if behind else math.inf):
                seen = await self.tree.changes.wait(seen)
            await anyio.sleep(GATHER_SECONDS)
            seen = self.tree.changes.count
            self.flush()

    def flush(self) -> None:
        """Sends the changes so far."""
        clients = self._gateway.clients.values()
        followers = [client for client in clients if client.follows_runs]
        if not followers:
            self.tree.forget_changes()
            return
        nodes, removed = self.tree.take_changes()
        events: list[EncodedEvent] = []
        for start in range(0, max(len(nodes), len(removed)), MAX_EVENT_NODES):
            part = slice(start, start + MAX_EVENT_NODES)
            payload: JsonObject = {
                "nodes": [node.to_json() for node in nodes[part]],
                "removed": list[JsonValue](removed[part]),
            }
            events.append(self._event(payload))
        for client in followers:
            if client.buffered > MAX_BEHIND:
                client.missed_runs = client.missed_runs or bool(events)
            elif client.missed_runs:
                # Everything that was missed is in the tree, and so are these changes.
                client.missed_runs = False
                client.notify(self._event({"reset": True}))
            else:
                for event in events:
                    client.notify(event)

    def _event(self, payload: JsonObject) -> EncodedEvent:
        return self._gateway.log.add(self._gateway.encode(CHANGED, payload))

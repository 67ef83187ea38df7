"""Both stores against a model: any order of operations by several owners, some of which die.

The model predicts the result of every operation. After each step, the open calls and the end of
every cell are compared too.
"""

import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.fuzzing import examples

from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import (
    AbortProgress,
    End,
    SnapshotStore,
    StoredCall,
    StoredCell,
    state_of,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, SnapshotTooLarge
from clawmode.types import CallState

P = ParamSpec("P")
T = TypeVar("T")

TTL = 60.0
LIMIT = 4
SCOPES = (Scope("a", "s", "k", "r1"), Scope("a", "s", "k", "r2"), Scope("a", "x", "k", "r1"))
MAX_CALLS = 3

numbers = st.integers(0, 5)
"""Chooses an owner or a cell, modulo how many there are."""

mostly = st.sampled_from([True, True, True, False])

call_ids = st.integers(1, MAX_CALLS)
states = st.sampled_from(["queued", "running", "approval"])


@dataclass
class ModelCell:
    scope: Scope
    expires: float
    mark: bytes
    holder: str = ""
    running: bool = False
    aborted: bool = False
    calls: dict[int, tuple[str, CallState]] = field(default_factory=dict)
    replies: list[bytes] = field(default_factory=list)


class DirectStore(SqliteStore):
    """A store on disk that works in the thread of its caller, which is much faster here."""

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._translated(work, *args, **kwargs)


class StoreStates(RuleBasedStateMachine):
    """Operations on a store, and the model of it.

    Attributes:
        cells: The cells that have not ended.
        ended: The cells that have ended, and those that are marked as aborted.
        owners: The names of all owners, with their store while they live.
    """

    durable: bool

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1000.0
        self.memory = MemoryStore(clock=lambda: self.now)
        self.store: SnapshotStore = self.new_store()
        self.cells: dict[str, ModelCell] = {}
        self.ended: dict[str, tuple[Scope, End]] = {}
        self.owners: dict[str, SnapshotStore | None] = {}
        self.marks = 0
        self.join()
        self.join()
        for number, state in enumerate(("running", "queued")):
            self.park(number, SCOPES[number], [state, "approval"])

    def teardown(self) -> None:
        for store in (self.store, *self.owners.values()):
            if isinstance(store, SqliteStore):
                store.close()
        self.folder.cleanup()

    def new_store(self) -> SnapshotStore:
        if not self.durable:
            return self.memory
        return DirectStore(Path(self.folder.name) / "state", clock=lambda: self.now)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Runs an operation that never waits, which needs no event loop."""
        try:
            operation.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the operation waits for something")

    # ---- Choices ----

    def owner(self, number: int) -> tuple[str, SnapshotStore]:
        """A living owner, and the store of its process."""
        living = [(name, store) for name, store in self.owners.items() if store is not None]
        return living[number % len(living)]

    def cell(self, number: int) -> str:
        """The id of a cell; 5 chooses one that has ended or never existed."""
        known = sorted(self.ended if number == 5 else self.cells) or ["cm_unknown"]
        return known[number % len(known)]

    def call(self, cell_id: str, number: int) -> int:
        """The id of an open call of a cell, or of none."""
        cell = self.cells.get(cell_id)
        known = sorted(cell.calls) if cell is not None else []
        return known[number % len(known)] if known else number

    def scope(self, cell_id: str, right: bool) -> Scope:
        """The scope of a cell, or another one."""
        known = self.cells.get(cell_id)
        return known.scope if known and right else SCOPES[0]

    def alive(self, name: str) -> bool:
        return self.owners.get(name) is not None

    def live(self, cell_id: str) -> ModelCell | None:
        cell = self.cells.get(cell_id)
        return None if cell is None or cell.aborted else cell

    # ---- Transitions of the model ----

    def bury(self, cell_id: str, end: End) -> None:
        self.ended[cell_id] = (self.cells.pop(cell_id).scope, end)

    def purge(self) -> None:
        for cell_id, cell in list(self.cells.items()):
            # The store on disk looks at the leases of dead holders in `join` and `claim` only.
            free = cell.holder == "" if self.durable else not self.alive(cell.holder)
            if free and not cell.running and cell.expires <= self.now:
                self.bury(cell_id, "expired")

    def fail(self, before: tuple[dict[str, ModelCell], dict[str, tuple[Scope, End]]]) -> None:
        """Restores the state before a purge that the store on disk has rolled back."""
        if self.durable:
            self.cells, self.ended = before

    def parked(self) -> int:
        return sum(not cell.running for cell in self.cells.values())

    def abort_one(self, cell_id: str, owner: str) -> AbortProgress:
        cell = self.cells[cell_id]
        if cell.holder == owner:
            cell.holder, cell.running = "", False
        cell.calls = {number: call for number, call in cell.calls.items() if call[0] != owner}
        others = {name for name, state in cell.calls.values() if state == "running"}
        if cell.running:
            others.add(cell.holder)
        if not any(self.alive(name) for name in others):
            self.bury(cell_id, "aborted")
            return "ended"
        cell.aborted, self.ended[cell_id] = True, (cell.scope, "aborted")
        return "asked"

    # ---- Owners and time ----

    @rule()
    @precondition(lambda self: sum(store is not None for store in self.owners.values()) < 3)
    def join(self) -> None:
        store = self.new_store()
        name = self.run(store.join())
        assert name not in self.owners
        self.owners[name] = store
        if self.durable:
            for cell_id, cell in list(self.cells.items()):
                if cell.holder and not self.alive(cell.holder) and cell.expires <= self.now:
                    self.bury(cell_id, "lost" if cell.running else "expired")

    @rule(number=numbers)
    @precondition(lambda self: sum(store is not None for store in self.owners.values()) > 1)
    def die(self, number: int) -> None:
        name, store = self.owner(number)
        self.run(store.leave(name))
        self.owners[name] = None

    @rule(seconds=st.sampled_from([10.0, 30.0, 61.0]), lists=st.booleans())
    def advance(self, seconds: float, lists: bool) -> None:
        self.now += seconds
        if lists:
            self.compare_lists()

    # ---- Parking and resuming ----

    def stored(self, cell_id: str, scope: Scope, owner: str, calls: list[CallState]) -> StoredCell:
        self.marks += 1
        return StoredCell(
            id=cell_id,
            scope=scope,
            ttl=TTL,
            record=b"record of %d" % self.marks,
            snapshot=b"memory of %d" % self.marks,
            calls=tuple(
                StoredCall(number, owner, state, b"body") for number, state in enumerate(calls, 1)
            ),
            replies=(b"%d" % self.marks,),
            mark=b"mark %d" % self.marks,
        )

    @rule(number=numbers, scope=st.sampled_from(SCOPES), calls=st.lists(states, max_size=MAX_CALLS))
    def park(self, number: int, scope: Scope, calls: list[CallState]) -> None:
        name, store = self.owner(number)
        cell = self.stored(f"cm_{self.marks}", scope, name, calls)
        before = dict(self.cells), dict(self.ended)
        self.purge()
        try:
            self.run(store.park(cell, name, LIMIT, again=False))
        except SnapshotTooLarge:
            assert self.parked() >= LIMIT
            self.fail(before)
            return
        assert self.parked() < LIMIT
        self.cells[cell.id] = ModelCell(scope, self.now + TTL, cell.mark)
        self.cells[cell.id].calls = {call.id: (name, call.state) for call in cell.calls}
        self.cells[cell.id].replies = list(cell.replies)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, right=mostly, takes=st.booleans())
    def claim(self, number: int, which: int, right: bool, takes: bool) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        scope = self.scope(cell_id, right)
        self.purge()
        found = self.run(store.claim(cell_id, scope, name))
        cell = self.live(cell_id)
        if cell is None:
            ended_scope, end = self.ended.get(cell_id, (None, None))
            assert found == (end if ended_scope == scope else "unknown")
        elif cell.scope != scope:
            assert found == "unknown"
        elif cell.holder != name and self.alive(cell.holder):
            assert found == "busy"
        elif cell.running:
            assert found == "lost"
            self.bury(cell_id, "lost")
        elif cell.holder != name and cell.expires <= self.now:
            assert found == "expired"
            self.bury(cell_id, "expired")
        else:
            assert isinstance(found, StoredCell)
            assert (found.mark, found.snapshot, found.replies) == (cell.mark, b"", ())
            assert self.calls_of(found.calls) == cell.calls
            cell.holder = name
            if takes:
                self.take(number, which, stale=False)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers)
    def release(self, number: int, which: int) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        self.run(store.release(cell_id, name))
        cell = self.cells.get(cell_id)
        if cell is not None and cell.holder == name and not cell.running:
            cell.holder, cell.expires = "", self.now + TTL

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, stale=st.booleans())
    def take(self, number: int, which: int, stale: bool) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        cell = self.live(cell_id)
        seen = b"stale" if stale or cell is None else cell.mark
        self.marks += 1
        mark = b"taken %d" % self.marks
        taken = self.run(store.take(cell_id, name, seen=seen, mark=mark))
        if cell is None or cell.holder != name or cell.running or stale:
            assert taken is None
            return
        assert taken is not None
        assert taken.snapshot == b"memory of " + seen.removeprefix(b"mark ")
        assert self.calls_of(taken.calls) == cell.calls
        assert list(taken.replies) == cell.replies
        cell.running, cell.mark = True, mark
        cell.replies.clear()
        cell.calls = {key: call for key, call in cell.calls.items() if call[0] != name}

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, calls=st.lists(states, max_size=MAX_CALLS))
    def park_again(self, number: int, which: int, calls: list[CallState]) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        known = self.cells.get(cell_id)
        if known is not None and known.running and self.alive(known.holder) and number < 4:
            name = known.holder
            store = self.owners[name] or store
        if known is not None and known.holder == name and not known.running:
            return  # a cell that was claimed and not taken is never parked
        scope = known.scope if known else SCOPES[0]
        cell = self.stored(cell_id, scope, name, calls)
        others = set[int]() if known is None else known.calls.keys()
        cell = StoredCell(
            id=cell.id,
            scope=cell.scope,
            ttl=cell.ttl,
            record=cell.record,
            snapshot=cell.snapshot,
            # The calls of other owners stay in the store, and numbers are never used twice.
            calls=tuple(call for call in cell.calls if call.id not in others),
            replies=cell.replies,
            mark=cell.mark,
        )
        before = dict(self.cells), dict(self.ended)
        self.purge()
        held = known is not None and known.holder == name and not known.aborted
        try:
            self.run(store.park(cell, name, LIMIT, again=True))
        except Aborted:
            assert not held
            self.fail(before)
            return
        except SnapshotTooLarge:
            assert held
            assert self.parked() >= LIMIT
            self.fail(before)
            return
        assert held
        assert known is not None
        assert self.parked() < LIMIT
        known.holder, known.running, known.mark = "", False, cell.mark
        known.expires = self.now + TTL
        known.calls |= {call.id: (name, call.state) for call in cell.calls}
        known.replies += cell.replies

    @precondition(lambda self: self.cells)
    @rule(which=numbers)
    def drain(self, which: int) -> None:
        cell_id = self.cell(which)
        cell = self.live(cell_id)
        if cell is not None and not cell.running:
            return  # only the process that runs a cell drains its inbox
        replies = self.run(self.store.drain(cell_id))
        assert replies == (None if cell is None else tuple(cell.replies))
        if cell is not None:
            cell.replies.clear()

    # ---- Calls ----

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, call_id=call_ids, state=states)
    def mark(self, number: int, which: int, call_id: int, state: CallState) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        call_id = self.call(cell_id, call_id)
        cell = self.cells.get(cell_id)
        owner = "" if cell is None else cell.calls.get(call_id, ("",))[0]
        if self.alive(owner) and number < 4:
            name, store = owner, self.owners[owner] or store
        cell = self.live(cell_id)
        known = cell is not None and owner == name
        assert self.run(store.mark(cell_id, call_id, name, state)) == known
        if cell is not None and known:
            cell.calls[call_id] = (name, state)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, call_id=call_ids, late=mostly.map(lambda yes: not yes))
    def adopt(self, number: int, which: int, call_id: int, late: bool) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        call_id = self.call(cell_id, call_id)
        cell = self.live(cell_id)
        owner, state = ("", "queued") if cell is None else cell.calls.get(call_id, ("", "queued"))
        if owner and not late and self.alive(owner):
            return  # only calls of dead owners are adopted
        call = StoredCall(call_id, "0" * 32 if late else owner, state, b"body")
        known = bool(owner) and not late
        assert self.run(store.adopt(cell_id, call, name)) == known
        if cell is not None and known:
            cell.calls[call_id] = (name, state)

    @precondition(lambda self: self.cells)
    @rule(which=numbers, call_id=call_ids, limit=st.sampled_from([2, 8, 999]))
    def settle(self, which: int, call_id: int, limit: int) -> None:
        cell_id = self.cell(which)
        call_id = self.call(cell_id, call_id)
        cell = self.cells.get(cell_id)
        reply = b"reply"
        if cell is None or call_id not in cell.calls:
            expected: Literal["kept", "full", "gone"] = "gone"
        else:
            size = sum(map(len, cell.replies)) + len(reply)
            expected = "full" if size > limit else "kept"
        assert self.run(self.store.settle(cell_id, call_id, reply, limit)) == expected
        if cell is not None and expected == "kept":
            del cell.calls[call_id]
            cell.replies.append(reply)

    # ---- Ending ----

    @precondition(lambda self: len(self.cells) > 2)
    @rule(which=numbers, right=st.booleans(), end=st.sampled_from(["finished", "aborted", "lost"]))
    def end(self, which: int, right: bool, end: End) -> None:
        cell_id = self.cell(which)
        scope = self.scope(cell_id, right)
        cell = self.cells.get(cell_id)
        known = cell is not None and cell.scope == scope
        assert self.run(self.store.end(cell_id, scope, end)) == known
        if known:
            self.bury(cell_id, end)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, right=mostly, as_owner=st.booleans())
    def abort(self, number: int, which: int, right: bool, as_owner: bool) -> None:
        (name, store), cell_id = self.owner(number), self.cell(which)
        scope, name = self.scope(cell_id, right), name if as_owner else ""
        cell = self.cells.get(cell_id)
        known = cell is not None and cell.scope == scope
        expected = self.abort_one(cell_id, name) if known else None
        assert self.run(store.abort(cell_id, scope, name)) == expected

    @rule(number=numbers, scope=st.sampled_from(SCOPES), session=st.booleans())
    @precondition(lambda self: len(self.cells) > 2)
    def end_all(self, number: int, scope: Scope, session: bool) -> None:
        name, store = self.owner(number)
        expected = {
            cell_id: self.abort_one(cell_id, name)
            for cell_id, cell in list(self.cells.items())
            if (cell.scope[:3] == scope[:3] if session else cell.scope == scope)
        }
        assert self.run(store.end_all(scope, session=session, owner=name)) == expected

    # ---- What must always hold ----

    def compare_lists(self) -> None:
        self.purge()
        found = {info.id: (info.state, info.left) for info in self.run(self.store.cells())}
        assert found == {
            cell_id: (state_of(cell.running, self.alive(cell.holder)), cell.expires - self.now)
            for cell_id, cell in self.cells.items()
        }
        assert self.run(self.store.room(LIMIT)) == (self.parked() < LIMIT)

    @invariant()
    def calls_and_ends_agree(self) -> None:
        known = {*self.cells, *self.ended}
        gone = {cell_id for cell_id in known if self.live(cell_id) is None}
        assert self.run(self.store.gone(known)) == gone
        for cell_id in self.cells:
            progress, cell = self.run(self.store.progress(cell_id)), self.live(cell_id)
            assert (progress is None) == (cell is None)
            if progress is not None and cell is not None:
                assert self.calls_of(progress.calls) == cell.calls
                assert progress.replies == len(cell.replies)

    @staticmethod
    def calls_of(calls: tuple[StoredCall, ...]) -> dict[int, tuple[str, CallState]]:
        return {call.id: (call.owner, call.state) for call in calls}


class MemoryStates(StoreStates):
    durable = False


class SqliteStates(StoreStates):
    durable = True


TestMemoryStore = MemoryStates.TestCase
TestMemoryStore.settings = examples(120, stateful_step_count=50)

TestSqliteStore = SqliteStates.TestCase
TestSqliteStore.settings = examples(40, stateful_step_count=50)

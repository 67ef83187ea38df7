"""Every store against a model: any order of operations by several owners, some of which die.

The model predicts the result of every operation. After each step, the open calls and the end of
every cell are compared too. Owners that died go on as zombies: they use the fences that they had,
and the names of their calls.
"""

import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
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
    Ended,
    SnapshotStore,
    StoredCall,
    StoredCell,
    StoredReply,
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
    memory: bytes
    ledger: bytes
    due: float
    holder: str = ""
    fence: int = 0
    running: bool = False
    kept: bool = False
    aborted: bool = False
    calls: dict[int, tuple[str, CallState]] = field(default_factory=dict)
    replies: dict[int, bytes] = field(default_factory=dict)

    def of(self, owner: str, fence: int) -> bool:
        return not self.aborted and (self.holder, self.fence) == (owner, fence)


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
        fences: The fences under which owners have had cells, by owner and cell.
        ledgers: The lists of calls of cells that have ended.
    """

    durable: bool
    """True if the store looks at dead holders in `join` and `claim` only."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1000.0
        self.memory = MemoryStore(clock=lambda: self.now)
        self.store: SnapshotStore = self.new_store()
        self.cells: dict[str, ModelCell] = {}
        self.ended: dict[str, tuple[Scope, End]] = {}
        self.owners: dict[str, SnapshotStore | None] = {}
        self.fences: dict[tuple[str, str], int] = {}
        self.ledgers: dict[str, bytes] = {}
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

    def caller(self, number: int, cell_id: str) -> tuple[str, SnapshotStore, int]:
        """Who writes: mostly who has the cell, else any owner, dead ones too; and its fence."""
        cell = self.cells.get(cell_id)
        if cell is not None and cell.holder and number < 4:
            name = cell.holder
        else:
            name = list(self.owners)[number % len(self.owners)]
        return name, self.owners[name] or self.store, self.fences.get((name, cell_id), number % 2)

    def alive(self, name: str) -> bool:
        return self.owners.get(name) is not None

    def live(self, cell_id: str) -> ModelCell | None:
        cell = self.cells.get(cell_id)
        return None if cell is None or cell.aborted else cell

    # ---- Transitions of the model ----

    def bury(self, cell_id: str, end: End, ledger: bytes = b"") -> None:
        cell = self.cells.pop(cell_id)
        self.ended[cell_id] = (cell.scope, end)
        self.ledgers[cell_id] = ledger or cell.ledger

    def purge(self) -> None:
        for cell_id, cell in list(self.cells.items()):
            # The store on disk looks at the leases of dead holders in `join` and `claim` only.
            free = cell.holder == "" if self.durable else not self.alive(cell.holder)
            gone = not cell.running or (cell.kept and not self.alive(cell.holder))
            if free and gone and cell.expires <= self.now:
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
        self.ledgers[cell_id] = cell.ledger
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
                    lost = cell.running and not cell.kept
                    self.bury(cell_id, "lost" if lost else "expired")

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
            replies=(StoredReply(100 + self.marks, b"%d" % self.marks),),
            mark=b"mark %d" % self.marks,
            ledger=b"calls of %d" % self.marks,
            due_in=100.0 + self.marks,
        )

    def put(self, cell: StoredCell, owner: str, fence: int, *, running: bool) -> None:
        """Changes the model as a park or a checkpoint does."""
        known = self.cells.get(cell.id)
        made = ModelCell(cell.scope, self.now + TTL, cell.mark, cell.snapshot, cell.ledger, 0.0)
        made.due = self.now + (cell.due_in or 0.0)
        made.holder, made.fence = owner if running else "", fence
        made.running = made.kept = running
        if known is not None:
            made.calls = {key: call for key, call in known.calls.items() if call[0] != owner}
            made.replies = known.replies
        made.calls = {call.id: (owner, call.state) for call in cell.calls} | made.calls
        made.replies |= {reply.call: reply.body for reply in cell.replies}
        self.cells[cell.id] = made

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
        self.put(cell, name, 0, running=False)
        self.run(store.park(cell, name, 0, again=False))  # a repetition

    @rule(number=numbers, scope=st.sampled_from(SCOPES), calls=st.lists(states, max_size=MAX_CALLS))
    def checkpoint(self, number: int, scope: Scope, calls: list[CallState]) -> None:
        name, store = self.owner(number)
        cell = self.stored(f"cm_{self.marks}", scope, name, calls)
        for _ in range(1 + number % 2):
            assert self.run(store.checkpoint(cell, name, again=False)) == 1
        self.put(cell, name, 1, running=True)
        self.fences[name, cell.id] = 1

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
        elif cell.running and not cell.kept:
            assert found == "lost"
            self.bury(cell_id, "lost")
        elif cell.holder != name and cell.expires <= self.now:
            assert found == "expired"
            self.bury(cell_id, "expired")
        else:
            assert isinstance(found, StoredCell)
            assert (found.mark, found.snapshot, found.replies) == (cell.mark, b"", ())
            assert self.calls_of(found.calls) == cell.calls
            assert (found.fence, found.due_in) == (cell.fence + 1, cell.due - self.now)
            cell.holder, cell.running, cell.fence = name, False, cell.fence + 1
            self.fences[name, cell_id] = cell.fence
            if takes:
                self.take(0, which, stale=False, keep=number > 2)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers)
    def release(self, number: int, which: int) -> None:
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        self.run(store.release(cell_id, name, fence))
        cell = self.cells.get(cell_id)
        mine = cell is not None and (cell.holder, cell.fence) == (name, fence)
        if cell is not None and mine and (cell.kept or not cell.running):
            cell.holder, cell.running, cell.expires = "", False, self.now + TTL

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, stale=st.booleans(), keep=st.booleans())
    def take(self, number: int, which: int, stale: bool, keep: bool) -> None:
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        cell = self.live(cell_id)
        seen = b"stale" if stale or cell is None else cell.mark
        self.marks += 1
        mark = b"taken %d" % self.marks
        args = (cell_id, name, fence)
        taken = self.run(store.take(*args, seen=seen, mark=mark, keep=keep))
        # Of a cell that runs already, only the repetition of a `take` with `keep` is known.
        repeated = cell is not None and cell.running and not (keep and cell.kept)
        if cell is None or not cell.of(name, fence) or stale or repeated:
            assert taken is None
            return
        assert taken is not None
        assert taken.snapshot == cell.memory
        assert self.calls_of(taken.calls) == cell.calls
        assert dict(taken.replies) == cell.replies
        assert [reply.call for reply in taken.replies] == list(cell.replies)
        cell.running, cell.kept, cell.mark = True, keep, seen if keep else mark
        assert self.run(store.take(*args, seen=seen, mark=mark, keep=keep)) == taken

    @precondition(lambda self: self.cells)
    @rule(
        number=numbers,
        which=numbers,
        calls=st.lists(states, max_size=MAX_CALLS),
        goes_on=st.booleans(),
        read=st.booleans(),
    )
    def write_again(
        self, number: int, which: int, calls: list[CallState], goes_on: bool, read: bool
    ) -> None:
        """Parks a cell that runs, or writes a checkpoint of it."""
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        known = self.cells.get(cell_id)
        scope = known.scope if known else SCOPES[0]
        cell = replace(self.stored(cell_id, scope, name, calls), fence=fence)
        # An owner lists all its calls; a call with a reply is none of them any more.
        answered = known.replies if known else {}
        open_calls = tuple(call for call in cell.calls if call.id not in answered)
        cell = replace(cell, calls=open_calls)
        have = tuple(known.replies)[:1] if known and read else ()
        before = dict(self.cells), dict(self.ended)
        if not goes_on:
            self.purge()
        known = self.cells.get(cell_id)  # it may have expired
        mine = known is not None and known.running and known.of(name, fence)
        try:
            if goes_on:
                raised = self.run(store.checkpoint(cell, name, again=True, have=have))
                assert raised == fence + 1
            else:
                self.run(store.park(cell, name, LIMIT, again=True, have=have))
        except Aborted:
            assert not mine
            self.fail(before)
            return
        except SnapshotTooLarge:
            assert mine
            assert self.parked() >= LIMIT
            self.fail(before)
            return
        assert mine
        assert known is not None
        assert goes_on or self.parked() < LIMIT
        for call in have:
            del known.replies[call]
        self.put(cell, name, fence + goes_on, running=goes_on)
        if goes_on:
            self.fences[name, cell_id] = fence + 1

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, keep=st.booleans())
    def drain(self, number: int, which: int, keep: bool) -> None:
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        cell = self.live(cell_id)
        have = tuple(cell.replies)[:1] if cell is not None else ()
        replies = self.run(store.drain(cell_id, name, fence, have, keep=keep))
        if cell is None or not (cell.running and cell.of(name, fence)):
            assert replies is None
            return
        assert replies == tuple(StoredReply(*item) for item in list(cell.replies.items())[1:])
        if not keep:
            for call in have:
                del cell.replies[call]

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
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        call_id = self.call(cell_id, call_id)
        cell = self.live(cell_id)
        owner, state = ("", "queued") if cell is None else cell.calls.get(call_id, ("", "queued"))
        seen = "completed" if late else state
        known = bool(owner) and not late and cell is not None and cell.of(name, fence)
        call = StoredCall(call_id, owner, seen, b"body")
        for _ in range(2):
            assert self.run(store.adopt(cell_id, call, name, fence)) == known
        if cell is not None and known:
            cell.calls[call_id] = (name, state)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, call_id=call_ids, limit=st.sampled_from([2, 8, 999]))
    def settle(self, number: int, which: int, call_id: int, limit: int) -> None:
        cell_id = self.cell(which)
        call_id = self.call(cell_id, call_id)
        cell = self.cells.get(cell_id)
        self.marks += 1
        reply = b"reply%d" % self.marks
        owner = "" if cell is None else cell.calls.get(call_id, ("",))[0]
        name = owner if number < 4 else list(self.owners)[number % len(self.owners)]
        if cell is None or not owner or owner != name:
            expected: Literal["kept", "full", "gone"] = "gone"
        else:
            size = sum(map(len, cell.replies.values())) + len(reply)
            expected = "full" if size > limit else "kept"
        for _ in range(2):
            assert self.run(self.store.settle(cell_id, call_id, name, reply, limit)) == expected
        if cell is not None and expected == "kept":
            del cell.calls[call_id]
            cell.replies.setdefault(call_id, reply)

    # ---- Ending ----

    @precondition(lambda self: len(self.cells) > 2)
    @rule(
        number=numbers,
        which=numbers,
        right=st.booleans(),
        end=st.sampled_from(["finished", "aborted", "lost"]),
        ledger=st.sampled_from([b"", b"all calls"]),
    )
    def end(self, number: int, which: int, right: bool, end: End, ledger: bytes) -> None:
        cell_id = self.cell(which)
        _, store, fence = self.caller(number, cell_id)
        scope = self.scope(cell_id, right)
        cell = self.cells.get(cell_id)
        if cell is None:
            return  # whether this repeats the end, the next lines check
        known = cell.scope == scope and cell.fence == fence
        for _ in range(2 if known else 1):
            assert self.run(store.end(cell_id, scope, end, fence, ledger)) == known
        if known:
            self.bury(cell_id, end, ledger)

    @precondition(lambda self: self.cells)
    @rule(number=numbers, which=numbers, right=mostly, how=st.sampled_from(["order", "own", "up"]))
    def abort(self, number: int, which: int, right: bool, how: str) -> None:
        cell_id = self.cell(which)
        name, store, fence = self.caller(number, cell_id)
        scope, name = self.scope(cell_id, right), "" if how == "order" else name
        cell = self.cells.get(cell_id)
        known = cell is not None and cell.scope == scope
        gives_up = how == "up"
        mine = cell is not None and cell.fence == fence and cell.holder in ("", name)
        if known and gives_up and cell is not None and not cell.aborted and not mine:
            expected: AbortProgress | None = "ended"
        else:
            expected = self.abort_one(cell_id, name) if known else None
        given = fence if gives_up else None
        assert self.run(store.abort(cell_id, scope, name, given)) == expected

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
            cell_id: (
                state_of(cell.running, cell.kept, self.alive(cell.holder)),
                cell.expires - self.now,
            )
            for cell_id, cell in self.cells.items()
        }
        assert self.run(self.store.room(LIMIT)) == (self.parked() < LIMIT)
        assert self.run(self.store.count_parked()) == self.parked()
        soonest = sorted(cell.expires - self.now for cell in self.cells.values())[:2]
        assert [info.left for info in self.run(self.store.cells(limit=2))] == soonest

    @invariant()
    def calls_and_ends_agree(self) -> None:
        known = {*self.cells, *self.ended}
        gone = {cell_id for cell_id in known if self.live(cell_id) is None}
        assert self.run(self.store.gone(known)) == gone
        for cell_id, (scope, end) in self.ended.items():
            # `ended` drops what has expired, as `compare_lists` does.
            if not any(cell.expires <= self.now for cell in self.cells.values()):
                found = self.run(self.store.ended(cell_id, scope))
                assert found == Ended(end, self.ledgers[cell_id])
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

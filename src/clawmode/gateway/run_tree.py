"""The tree of what runs now: turns, their programs, and the calls that programs and models make.

Built from the events of runs and the questions to people, so that a change costs the same however
large the tree is. Turns that have ended stay for a while, with everything below them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from clawmode.agent.events import AgentEvent
from clawmode.code_mode.cell import GATE
from clawmode.gateway.run_nodes import (
    CALL_STATES,
    MAX_NODE_ID,
    MAX_TITLE,
    OVER,
    TURN_STATES,
    Hide,
    Node,
    State,
    node_id_of,
    preview_of,
    title_of,
)
from clawmode.tasks import Notifier
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.agent.run import AgentRun
    from clawmode.code_mode.code_mode import CodeMode
    from clawmode.code_mode.stores import CellInfo

MAX_NODES = 12_000
"""The most nodes. Calls that have ended are left out first; their parent counts them."""

MAX_ENDED = 100
KEEP_SECONDS = 60.0
"""The most turns that have ended, and how long each stays."""


class RunTree:
    """The nodes of all runs of a gateway.

    Args:
        programs: Returns the open code mode of a run by the id of the run; None if it has none.
        hide: Redacts the secrets that are known.

    Attributes:
        nodes: The nodes by id, parents before their children.
        changes: Notified of every change.
        left_out: Nodes that could not be added because there are too many.
    """

    def __init__(self, programs: "Callable[[str], CodeMode | None]", hide: Hide = str) -> None:
        self.nodes: dict[str, Node] = {}
        self.changes = Notifier()
        self.left_out = 0
        self._programs, self._hide = programs, hide
        self._number = 0
        self._names: dict[str, str] = {}
        self._by_run: dict[str, dict[str, None]] = {}
        self._questions: dict[str, str] = {}
        self._waits: dict[str, str] = {}
        self._ended: deque[tuple[float, str]] = deque()
        self._ended_calls: deque[str] = deque()
        self._changed: dict[str, None] = {}
        self._removed: list[str] = []
        self._stale: set[str] = set()
        self._unnamed: dict[str, None] = {}

    # ---- Reading ----

    def page(
        self, after: int, limit: int, session_key: str = ""
    ) -> tuple[list[JsonValue], int | None]:
        """Returns nodes after a number, and the number to go on with; None at the end."""
        found: Iterator[Node] = (
            node
            for node in self.nodes.values()
            if node.number > after and session_key in ("", node.session_key)
        )
        shown = list(islice(found, limit + 1))
        more = len(shown) > limit
        return [node.to_json() for node in shown[:limit]], shown[limit - 1].number if more else None

    def take_changes(self) -> tuple[list[Node], list[str]]:
        """Returns the nodes that have changed since the last call, and the ids of removed ones."""
        self.look()
        self.tidy()
        nodes = [self.nodes[each] for each in self._changed if each in self.nodes]
        removed, self._removed = self._removed, list[str]()
        self._changed.clear()
        return nodes, removed

    def forget_changes(self) -> None:
        """Does what `take_changes` does if nobody wants to know the changes."""
        self.tidy()
        self._changed.clear()
        self._removed.clear()

    def look(self) -> None:
        """Adds what only the programs know: their ids, queued calls and the inputs of calls."""
        for run_id in self._stale:
            programs = self._programs(run_id)
            for view in () if programs is None else programs.views():
                program = self.nodes.get(self._id(run_id, view.parent_id))
                if program is None or program.kind != "program":
                    continue
                if (program.cell_id, program.queued) != (view.id, view.queued):
                    program.cell_id, program.queued = view.id, view.queued
                    self._unnamed.pop(program.id, None)
                    self._changed[program.id] = None
                for call_id, given in view.inputs.items():
                    call = self.nodes.get(self._id(run_id, call_id))
                    if call is not None and given and not call.preview:
                        call.preview = preview_of(given, self._hide)
                        self._changed[call.id] = None
        # A program gets its id a moment after its call was reported.
        self._stale = {self.nodes[each].run_id for each in self._unnamed}

    def tidy(self) -> None:
        """Removes turns that ended a while ago."""
        before = time.time() - KEEP_SECONDS
        while self._ended and (self._ended[0][0] < before or len(self._ended) > MAX_ENDED):
            _, run_id = self._ended.popleft()
            turn = self.nodes.get(run_id)
            if turn is None or turn.ended:  # else the run was continued under its id
                for each in self._by_run.pop(run_id, ()):
                    self._remove(each)
                for name in [it for it in self._names if it.startswith(f"{run_id}/")]:
                    del self._names[name]
        self._stale.intersection_update(self._by_run)  # `look` is called for followers only
        if len(self._ended_calls) > 2 * MAX_NODES:
            self._ended_calls = deque(each for each in self._ended_calls if each in self.nodes)

    # ---- Runs ----

    def accept(self, run: "AgentRun") -> None:
        """Adds a turn that has been accepted."""
        context = run.context
        self._add(
            id=run.id,
            parent=None,
            kind="turn",
            title=title_of(run.request.message, self._hide),
            run_id=run.id,
            session_key=context.session_key,
            agent_id=context.agent_id,
            state="queued",
            started=run.accepted_at,
            waits_for="place",
        )

    def take(self, event: AgentEvent) -> None:
        """Changes the tree as an event of a run says."""
        if event.stream == "lifecycle":
            if event.data.get("phase") == "start":
                self._start_turn(event)
            else:
                self.end_run(event.run_id, str(event.data.get("status")))
        elif event.stream == "tool" and event.data.get("phase") != "update":
            self._stale.add(event.run_id)
            if event.data.get("parentId") is None:
                self._take_call_of_model(event)
            else:
                self.take_call(event.run_id, event.session_key, event.data)

    def _start_turn(self, event: AgentEvent) -> None:
        turn = self.nodes.get(event.run_id)
        if turn is not None:
            turn.state, turn.started, turn.ended = "running", event.at, 0.0
            turn.wait("")
            self._touch(turn)

    def end_run(self, run_id: str, status: str = "") -> None:
        """Ends all nodes of a run, which disappear after a while."""
        turn = self.nodes.get(run_id)
        for each in self._by_run.get(run_id, ()):
            node = self.nodes[each]
            if node is not turn and node.state not in OVER:
                self._end(node, "cancelled")
        if turn is not None:
            self._end(turn, TURN_STATES.get(status, "failed"))
        self._ended.append((time.time(), run_id))

    def restore(self, cells: "Iterable[CellInfo]", left_out: int = 0) -> None:
        """Adds the programs that an earlier process has parked; `left_out` are not among them."""
        now = time.time()
        self.left_out += max(left_out, 0)
        for cell in cells:
            if cell.state not in ("parked", "waiting"):
                continue
            _, _, session_key, run_id = cell.scope
            node_id = self._id(run_id, cell.id)
            self.start_program(run_id, session_key, node_id, "", cell.scope.agent_id)
            if (node := self.nodes.get(node_id)) is not None:
                node.state, node.started, node.expires = "parked", now - cell.age, now + cell.left
                self._name(node, cell.id)
                node.wait("calls")

    # ---- Calls ----

    def _take_call_of_model(self, event: AgentEvent) -> None:
        """Adds or ends a call of the model itself: `exec` is a program, `wait` resumes it."""
        data, run_id, key = event.data, event.run_id, event.session_key
        programs, call_id = self._programs(run_id), str(data.get("callId"))
        given: Any = data.get("args")
        arguments: dict[str, Any] = given if isinstance(given, dict) else {}
        if data.get("phase") == "start":
            if programs is None:
                self.take_call(run_id, key, data, arguments)
            elif data.get("name") == "wait":
                self.resume(run_id, call_id, str(arguments.get("runId", "")))
            else:
                node_id = self._new_id(run_id, call_id)
                self.start_program(run_id, key, node_id, str(arguments.get("code", "")))
            return
        node_id = self._id(run_id, call_id)
        program = self.nodes.get(self._waits.pop(node_id, node_id))
        if program is not None and program.kind == "program":
            ttl = 0.0 if programs is None else programs.config.snapshot_ttl_seconds
            self.end_step(program, data.get("details"), ttl, failed=bool(data.get("isError")))
        else:
            self.take_call(run_id, key, data)

    def start_program(
        self, run_id: str, session_key: str, node_id: str, code: str, agent_id: str = ""
    ) -> None:
        """Adds a program. Its parent is the turn, if that is known."""
        self._stale.add(run_id)
        self._add(
            id=node_id,
            parent=self._known(run_id),
            kind="program",
            title="exec",
            run_id=run_id,
            session_key=session_key,
            agent_id=agent_id,
            preview=preview_of(code, self._hide),
        )
        if node_id in self.nodes:
            self._unnamed[node_id] = None

    def resume(self, run_id: str, call_id: str, cell_id: str) -> None:
        """Marks a parked program as running, until the call `call_id` ends."""
        nodes = (self.nodes[each] for each in self._by_run.get(run_id, ()))
        node = next((it for it in nodes if it.kind == "program" and it.cell_id == cell_id), None)
        if node is not None and node.state not in OVER:
            self._waits[self._id(run_id, call_id)] = node.id
            self.go_on(node)

    def go_on(self, program: Node) -> None:
        """Marks a parked program as running."""
        program.state, program.expires = "running", 0.0
        program.wait("")
        self._touch(program)

    def end_step(self, program: Node, result: JsonValue, ttl: float, *, failed: bool) -> None:
        """Marks a program as parked or ended, as the result of `exec` or `wait` says."""
        details: dict[str, Any] = result if isinstance(result, dict) else {}
        if details.get("status") != "waiting":
            program.code = shorten(str(details.get("code") or ""), MAX_TITLE)
            aborted = program.code == "aborted"
            self._end(program, "cancelled" if aborted else "failed" if failed else "completed")
            return
        self._name(program, str(details.get("runId")))
        program.state, program.expires = "parked", time.time() + ttl if ttl else 0.0
        rows = [row for row in details.get("pendingToolCalls") or () if isinstance(row, dict)]
        due = min((float(row["due"]) for row in rows if row.get("due")), default=0.0) / 1000
        states = {row.get("state") for row in rows}
        if "approval" in states:
            program.wait("approval")
        elif states - {"timer"} and details.get("reason") != "yield":
            program.wait("calls")
        else:
            program.wait("timer" if due else "yield", due)
        self._touch(program)

    def take_call(
        self, run_id: str, session_key: str, data: JsonObject, given: JsonObject | None = None
    ) -> None:
        """Adds or ends a call; `data` is that of an event `tool`."""
        call_id = str(data.get("callId"))
        if data.get("phase") == "start":
            above = data.get("parentId")
            parent = None if above is None else self._known(self._id(run_id, str(above)))
            tool_id = shorten(str(data.get("name")), MAX_NODE_ID)
            self._add(
                id=self._new_id(run_id, call_id),
                parent=parent or self._known(run_id),
                kind="call",
                title=title_of(tool_id.rpartition(":")[2]),
                run_id=run_id,
                session_key=session_key,
                tool_id=tool_id,
                preview=preview_of(given, self._hide) if given else "",
            )
        elif (node := self.nodes.get(self._id(run_id, call_id))) is not None:
            node.code = shorten(str(data.get("code") or ""), MAX_TITLE)
            ended = "failed" if data.get("isError") else "completed"
            self._end(node, CALL_STATES.get(data.get("state"), ended))

    # ---- Questions ----

    def ask(self, kind: Literal["approval", "input"], question: JsonObject) -> None:
        """Marks a call as waiting for a person; `question` is the payload of the event."""
        run_id, call_id = str(question["runId"]), str(question["callId"])
        cell_id, _, number = call_id.rpartition(":")
        if number == str(GATE):  # whether the program may start
            self._stale.add(run_id)
            self.look()
            same = (self.nodes[each] for each in self._by_run.get(run_id, ()))
            node = next((it for it in same if cell_id and it.cell_id == cell_id), None)
        else:
            node = self.nodes.get(self._id(run_id, call_id))
        if node is not None and node.state not in OVER:
            until: Any = question["expiresAtMs"]
            node.state = "waiting"
            node.wait(kind, until / 1000, str(question["id"]))
            self._questions[str(question["id"])] = node.id
            self._touch(node)

    def settle(self, question_id: str) -> None:
        """Marks the call of a question as running again."""
        node = self.nodes.get(self._questions.pop(question_id, ""))
        if node is not None and node.question == question_id and node.state == "waiting":
            node.state = "running"
            node.wait("")
            self._touch(node)

    # ---- Nodes ----

    def _add(self, **given: Any) -> None:
        if len(self.nodes) >= MAX_NODES and not self._make_room():
            self.left_out += 1
            return
        self._number += 1
        node = self.nodes[given["id"]] = Node(number=self._number, **given)
        self._by_run.setdefault(node.run_id, {})[node.id] = None
        self._touch(node)

    def _known(self, node_id: str) -> str | None:
        """Returns the id of a node, the same object for all its children; None if it is unknown."""
        return self.nodes[node_id].id if node_id in self.nodes else None

    def _name(self, program: Node, cell_id: str) -> None:
        program.cell_id = cell_id
        self._unnamed.pop(program.id, None)

    def _id(self, run_id: str, call_id: str) -> str:
        """Returns the id of the node of a call."""
        made = node_id_of(run_id, call_id)
        return self._names.get(made, made)

    def _new_id(self, run_id: str, call_id: str) -> str:
        """Returns the id of a new node: models may use the id of a call again."""
        made = node_id_of(run_id, call_id)
        if self._names.get(made, made) in self.nodes:
            self._names[made] = f"{made}~{self._number + 1}"
        return self._names.get(made, made)

    def _make_room(self) -> bool:
        while self._ended_calls:
            node = self.nodes.get(self._ended_calls.popleft())
            if node is None or node.state not in OVER:
                continue
            del self._by_run[node.run_id][node.id]
            self._remove(node.id)
            above = self.nodes.get(node.parent or "")
            if above is not None:
                above.left_out += 1
                self._touch(above)
            return True
        return False

    def _end(self, node: Node, state: State) -> None:
        node.state, node.ended, node.expires, node.queued = state, time.time(), 0.0, 0
        self._questions.pop(node.question, None)
        node.wait("")
        self._unnamed.pop(node.id, None)
        if node.kind == "call":
            self._ended_calls.append(node.id)
        self._touch(node)

    def _remove(self, node_id: str) -> None:
        if (node := self.nodes.pop(node_id, None)) is not None:
            self._changed.pop(node_id, None)
            self._unnamed.pop(node_id, None)
            self._questions.pop(node.question, None)
            self._removed.append(node_id)
            self.changes.notify()

    def _touch(self, node: Node) -> None:
        self._changed[node.id] = None
        self.changes.notify()

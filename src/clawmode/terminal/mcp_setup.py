"""The dialog of `clawmode setup`: shows what would change, asks, and reports what was changed."""

import sys
from typing import Any

from clawmode.app.console import ProgramOutput, print_note, print_stderr
from clawmode.app.mcp_clients import CLIENTS, Change, ClientSetup, Plan, find
from clawmode.exceptions import ConfigurationError
from clawmode.text import IN_TEXT, escape

FAILED = 1
DECLINED = 2
DONE = (
    "Restart these clients. If a server needs a login, run `clawmode login SERVER --mcp-config "
    "FILE` once. `clawmode setup --undo` changes everything back."
)


class SetupDialog:
    """Moves the servers of clients behind clawmode, or back.

    Args:
        out: Where the results are printed.
        clients: The names of the clients; None for all.
        agreed: The user has agreed on the command line.
        as_json: Print JSON, and ask nothing.
    """

    def __init__(
        self, out: ProgramOutput, clients: list[str] | None, *, agreed: bool, as_json: bool
    ) -> None:
        self._out = out
        self._clients = clients
        self._agreed = agreed
        self._as_json = as_json
        self._setup = ClientSetup()
        self._rows: dict[str, dict[str, Any]] = {}  # what `--json` prints, by client

    def move(self) -> int:
        """Moves servers behind clawmode. Returns the exit status."""
        plans = list(find(self._clients))
        for plan in plans:
            self._show(plan)
        todo = [plan for plan in plans if plan.moved]
        if not plans:
            names = ", ".join(client.title for client in CLIENTS)
            self._say(f"No MCP client with a list of servers was found. Known clients: {names}.")
        elif not todo:
            self._say("There is nothing to move.")
        elif not self._may("Move these servers behind clawmode?", len(todo)):
            return self._end(DECLINED)
        for plan in todo:
            row = self._rows[plan.client.name]
            try:
                change = self._setup.move(plan)
            except ConfigurationError as error:
                self._fail(row, error)
                continue
            row |= {"done": True, "servers": change.servers, "copy": change.copy}
            self._say(f"{plan.client.title}: moved {len(plan.moved)} to {change.servers}")
            self._say(f"  The old file is kept as {change.copy}")
        if any(row["done"] for row in self._rows.values()):
            self._say(DONE)
        return self._end(FAILED if any(row["problem"] for row in self._rows.values()) else 0)

    def undo(self) -> int:
        """Moves servers back. Returns the exit status."""
        changes: list[Change] = []
        for change in self._setup.changes():
            if not self._clients or change.client in self._clients:
                changes.append(change)
                row = {"client": change.client, "file": change.file, "done": False, "problem": ""}
                self._rows[change.client] = row
                self._say(f"{change.client}: {change.file}")
        if not changes:
            self._say("There is nothing to undo.")
        elif not self._may("Move the servers of these files back?", len(changes)):
            return self._end(DECLINED)
        for change in changes:
            try:
                done = self._setup.restore(change)
            except ConfigurationError as error:
                self._fail(self._rows[change.client], error)
                continue
            self._rows[change.client]["done"] = True
            self._say(f"{change.client}: {done}")
        return self._end(FAILED if any(row["problem"] for row in self._rows.values()) else 0)

    def _show(self, plan: Plan) -> None:
        row: dict[str, Any] = {"client": plan.client.name, "file": str(plan.file), "done": False}
        row |= {"moved": [*plan.moved], "kept": plan.kept, "problem": ""}
        self._rows[plan.client.name] = row
        self._say(f"{plan.client.title}: {plan.file}")
        if plan.problem:
            self._fail(row, plan.problem)
        elif not plan.moved and not plan.kept:
            self._say("  has no servers besides clawmode")
        for name, address in plan.moved.items():
            self._say(f"  moves  {escape(name)}  ({escape(address)})")
        for name, reason in plan.kept.items():
            self._say(f"  stays  {escape(name)}  ({reason})")
        if plan.moved and not plan.client.asks:
            self._say(
                "  This client may be unable to ask about calls: docs/guide/mcp.md, Approval."
            )

    def _fail(self, row: dict[str, Any], problem: object) -> None:
        row["problem"] = str(problem)
        print_note(f"{row['client']}: {problem}")

    def _may(self, question: str, count: int) -> bool:
        if self._agreed:
            return True
        if self._as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            print_note(f"nothing was changed; add --yes to change {count} file{'s' * (count > 1)}")
            return False
        print_stderr(f"{question} [y/N]")
        return sys.stdin.readline().strip().casefold() in ("y", "yes")

    def _say(self, text: str) -> None:
        if not self._as_json:
            self._out.say(escape(text, IN_TEXT))

    def _end(self, status: int) -> int:
        if self._as_json:
            self._out.json({"clients": [*self._rows.values()]})
        return status

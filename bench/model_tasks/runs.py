"""Runs tasks: a fresh company for each, its MCP servers, an agent on one surface, and the check."""

import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from bench.model_tasks import library, tracker
from bench.model_tasks.departments import APPROVED, company_tools
from bench.model_tasks.players import Figures, Meter, Oracle, Player
from bench.model_tasks.tasks import REFUND_LIMIT, Outcome, Task
from bench.model_tasks.world import World
from clawmode import Agent, Approvals, McpServers, Pool, Question, RunFailed
from clawmode.code_mode.arguments import read_mcp_servers
from clawmode.models.base import Model
from clawmode.tools.approvals import Decision
from clawmode.types import JsonObject

ROOT = Path(__file__).parents[2]
SURFACES = ("direct", "Tool Search", "code mode")
ANSWER_SECONDS = 0.05
"""How long the person takes who is asked for approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A task that was run.

    Attributes:
        problem: Why the run ended without an answer.
    """

    task: Task
    surface: str
    solved: bool
    answer: str
    problem: str
    seconds: float
    figures: Figures


async def approve(question: Question) -> Decision:
    """Decides like the person in the tasks, who approves everything but large refunds."""
    await anyio.sleep(ANSWER_SECONDS)
    amount = question.input.get("amount_cents", 0)
    refund = question.tool_id.endswith("issue_refund")
    assert isinstance(amount, int)
    return "deny" if refund and amount > REFUND_LIMIT else "allow-once"


class Office:
    """The workers and MCP servers that all runs share. `open_office` opens one."""

    def __init__(self, folder: Path, pool: Pool, servers: McpServers) -> None:
        self.folder = folder
        self.pool = pool
        self.servers = servers

    async def run(self, task: Task, surface: str, model: Model) -> Run:
        """Runs a task in a world of its own, and checks the outcome."""
        world, meter = World(), Meter(model)
        issues, documents = self.folder / "tracker", self.folder / "library"
        issues.write_text(json.dumps(tracker.make_issues()), "utf-8")
        documents.write_bytes(library.DOCUMENTS.dump_json(library.make_documents()))
        agent = Agent(
            meter,
            tools=company_tools(world),
            mcp_servers=self.servers,
            code_mode=surface == "code mode",
            tool_search={"mode": "tools"} if surface == "Tool Search" else False,
            approvals=Approvals(ask_for=APPROVED, approver=approve),
            pool=self.pool,
        )
        answer = problem = ""
        async with agent:
            begun = time.monotonic()
            try:
                answer = (await agent.run(task.text)).output
            except RunFailed as error:
                problem = str(error)
            seconds = time.monotonic() - begun
        outcome = Outcome(
            answer, world, json.loads(issues.read_text()), json.loads(documents.read_text())
        )
        return Run(
            task=task,
            surface=surface,
            solved=not problem and task.check(outcome),
            answer=answer,
            problem=problem,
            seconds=seconds,
            figures=meter.figures,
        )


@asynccontextmanager
async def open_office() -> AsyncIterator[Office]:
    """Starts the MCP servers and the workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings: JsonObject = {
            server: {
                "command": sys.executable,
                "args": ["-m", f"bench.model_tasks.{server}", str(folder / server)],
                "cwd": str(ROOT),
            }
            for server in ("tracker", "library")
        }
        async with Pool() as pool, McpServers(read_mcp_servers(settings)) as servers:
            await servers.connect()
            yield Office(folder, pool, servers)


def oracle(task: Task, surface: str) -> Model:
    """Returns the model that plays the ideal solution."""
    return Player("oracle", Oracle(task, surface).reply)

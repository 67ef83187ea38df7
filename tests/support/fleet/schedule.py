"""The plan of a fault run: its size, its faults in order, and its programs, all from one seed."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from tests.support.fleet.checker import Program

from clawmode.code_mode.config import Durability

Kind = Literal["kill", "stop", "cut", "reset", "hole", "half", "slow", "restart"]
CUTS: tuple[Kind, ...] = ("cut", "reset", "hole", "half", "slow")
RESTARTS = ("INT", "QUIT", "KILL")

HOUR, DAY = 3600.0, 86_400.0


@dataclass(frozen=True)
class Plan:
    """The size of a run.

    Attributes:
        seed: Decides the faults and the programs.
        moved: How many programs are parked on one node, which is killed, and finished on another.
        kills: How many times a random node is killed with SIGKILL.
        stops: How many times a node is stopped beyond its lease, and then continued.
        cuts: How many times the network between a node and PostgreSQL is disturbed.
        restarts: How many times PostgreSQL is restarted: in order, at once, or killed.
        callers: How many programs are under way at once.
        gap: The mean time between two faults of a node, in seconds.
        lease: The lease of a node, in seconds.
        clocks: Whether the clocks of nodes differ by an hour, and their uptimes by 30 days.
    """

    seed: int
    durability: Durability = "parked"
    nodes: int = 3
    moved: int = 0
    kills: int = 0
    stops: int = 0
    cuts: int = 0
    restarts: int = 0
    callers: int = 12
    gap: float = 0.5
    lease: float = 1.5
    clocks: bool = False

    def divided(self, by: int) -> "Plan":
        """Returns a part of the plan."""
        sizes = ("moved", "kills", "stops", "cuts", "restarts")
        return replace(self, **{name: getattr(self, name) // by for name in sizes})

    def patience_of(self, node: int) -> float:
        """Returns how long a node waits for PostgreSQL; 0 for the default.

        One node gives up within a `hole`: what it has sent then arrives late, after what it and
        others have sent since.
        """
        return self.lease * 0.4 if node % 3 == 1 else 0.0

    def clock_of(self, node: int) -> tuple[float, float]:
        """Returns how much the wall clock and the uptime of a node differ from the truth."""
        if not self.clocks:
            return 0.0, 0.0
        # Never before the machine's own start: no clock of a real machine is negative.
        return ((HOUR, 30 * DAY), (-HOUR, 0.0), (0.0, 60 * DAY))[node % 3]


FOLDER = Plan(seed=23, moved=10_000, kills=1_000, stops=100, lease=0.5)
"""The whole run on a folder, which has no leases and no network."""

POSTGRES = Plan(
    seed=23,
    durability="effects",
    moved=10_000,
    kills=1_000,
    stops=500,
    cuts=500,
    restarts=100,
    clocks=True,
)
"""The whole run on PostgreSQL."""


@dataclass(frozen=True)
class Fault:
    """One fault: `gap` seconds after the one before it on the same node, for `lasts` seconds."""

    kind: Kind
    gap: float
    lasts: float = 0.0
    detail: str = ""


def make_schedule(plan: Plan) -> list[list[Fault]]:
    """Returns the faults of each node, and then those of PostgreSQL. The same for the same plan."""
    chance = random.Random(f"faults {plan.seed}")
    lanes: list[list[Fault]] = [[] for _ in range(plan.nodes)]
    cuts = [chance.choice(CUTS) for _ in range(plan.cuts)]
    kinds: list[Kind] = [*["kill"] * plan.kills, *["stop"] * plan.stops, *cuts]
    chance.shuffle(kinds)
    for kind in kinds:
        gap = chance.expovariate(1 / plan.gap) if plan.gap else 0.0
        lasts = {
            "kill": 0.0,
            "stop": plan.lease * chance.uniform(1.2, 2.0),
            "reset": 0.0,
            "hole": plan.lease * chance.uniform(0.1, 2.0),
            "half": plan.lease * chance.uniform(0.1, 1.0),
        }.get(kind, chance.uniform(0.05, 0.5))
        chance.choice(lanes).append(Fault(kind, gap, lasts))
    # Spread over the time that the nodes' own faults take.
    spread = max((sum(it.gap + it.lasts + 0.3 for it in lane) for lane in lanes), default=0.0)
    between = spread / (plan.restarts + 1)
    restarts = [
        Fault("restart", between * chance.uniform(0.7, 1.1), detail=chance.choice(RESTARTS))
        for _ in range(plan.restarts)
    ]
    return [*lanes, restarts]


# ---- Programs ----

SOURCE = """\
const told = [];
const call = async (kind, key, ms) => {
  try { told.push([key, await tools[kind]({ key, ms })]) }
  catch (error) { told.push([key, error.code ?? `${error}`]) }
};
%s
return { name: "%s", told };
"""


def make_program(name: str, chance: random.Random) -> Program:
    """Returns a program of a few steps, each of which makes calls, yields, or waits for a timer.

    The first step of most programs is a yield, so that their callers know their ids.
    """
    calls: dict[str, str] = {}
    lines = ["await yield_control();"] if chance.random() < 0.7 else []

    def call(ms: int) -> str:
        key = f"{name}/{len(calls) + 1}"
        calls[key] = chance.choices(("act", "put", "look"), (5, 1, 2))[0]
        return f'call("{calls[key]}", "{key}", {ms})'

    for _ in range(chance.randint(1, 3)):
        match chance.choices(("one", "many", "slow", "timer", "yield"), (4, 3, 1, 1, 1))[0]:
            case "one":
                lines.append(f"await {call(chance.randint(0, 30))};")
            case "many":
                made = [call(chance.randint(0, 60)) for _ in range(chance.randint(2, 4))]
                lines.append(f"await Promise.all([{', '.join(made)}]);")
            case "slow":  # the caller's time is over before
                lines.append(f"await {call(chance.randint(300, 900))};")
            case "timer":
                ms = chance.randint(10, 300)
                lines.append(f"await new Promise((resolve) => setTimeout(resolve, {ms}));")
            case _:
                lines.append("await yield_control();")
    if not calls:
        lines.append(f"await {call(5)};")
    return Program(name, SOURCE % ("\n".join(lines), name), calls)


def parked_program(name: str, ms: int = 0, kind: str = "act") -> Program:
    """Returns a program that waits for its second caller, and then acts.

    With `ms`, the program makes a call of the kind at once, so slowly that its caller leaves.
    """
    first, second = f"{name}/1", f"{name}/2"
    if not ms:
        lines = f'await yield_control();\nawait call("act", "{second}", 0);'
        return Program(name, SOURCE % (lines, name), {second: "act"})
    lines = f'await call("{kind}", "{first}", {ms});\nawait call("act", "{second}", 0);'
    return Program(name, SOURCE % (lines, name), {first: kind, second: "act"})

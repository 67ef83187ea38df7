"""The stores of parked cells that the contract tests run against."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore

Clock: TypeAlias = Callable[[], float]

BACKENDS: dict[str, Callable[[Path, Clock], SnapshotStore]] = {
    "memory": lambda folder, clock: MemoryStore(clock=clock),
    "sqlite": lambda folder, clock: SqliteStore(folder / "state", clock=clock),
}
"""By name: makes a store, with a folder for its files and the clock that it must go by."""

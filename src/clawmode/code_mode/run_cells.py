"""The cells of one run: their parts, wired together; and the cells listed, aborted and ended."""

from collections.abc import Callable

from anyio.abc import TaskGroup

from clawmode.code_mode.bridge import Bridge
from clawmode.code_mode.calls import Calls
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.driver import Driver
from clawmode.code_mode.gate import Gate
from clawmode.code_mode.nodes import CellView
from clawmode.code_mode.offer import Offer
from clawmode.code_mode.parking import Parking
from clawmode.code_mode.programs import Programs
from clawmode.code_mode.shapes import SeenShapes
from clawmode.code_mode.spans import find_recorder
from clawmode.code_mode.state import ProgramState
from clawmode.code_mode.stores import SnapshotStore
from clawmode.code_mode.telemetry import Telemetry
from clawmode.context import RunContext
from clawmode.sandbox.pool import Pool
from clawmode.tasks import Lifetime
from clawmode.tools.executor import Executor, Watcher


class RunCells:
    """Base class of `CodeMode`: owns the cells of a run, and the parts that drive and park them.

    Args:
        executor: Makes the calls.
        offer: What programs can call.
        store: Where waiting programs are kept.
        pool: The workers. Whoever made the pool opens and closes it.
        context: The ids of the run.
        config: Limits.
        telemetry: Counts what happens; the offer's.
        shapes: Remembers the shapes of results; the offer's.
    """

    def __init__(
        self,
        executor: Executor,
        offer: Offer,
        store: SnapshotStore,
        pool: Pool,
        *,
        context: RunContext,
        config: CodeModeConfig,
        telemetry: Telemetry,
        shapes: SeenShapes,
    ) -> None:
        self.config = config
        self.context = context
        self.approvals = executor.approvals
        self.executor = executor
        self.telemetry = telemetry
        self._spans = find_recorder()
        if self._spans is not None:
            executor.watchers.append(self._spans)
        self._offer = offer
        gate = Gate(executor, context, config)
        self._parking = Parking(store, context, config)
        self._calls = Calls(
            executor=executor,
            gate=gate,
            bridge=offer.bridge,
            parking=self._parking,
            config=config,
            context=context,
            telemetry=telemetry,
            connect=offer.connect,
            shapes=shapes,
        )
        offer.on_change = self._use_bridge
        self._driver = Driver(
            pool=pool,
            calls=self._calls,
            parking=self._parking,
            config=config,
            telemetry=telemetry,
            install=offer.setup,
            state=ProgramState(store, context, config),
        )
        # Calls continue while their cell is parked, so their tasks need their own lifetime.
        self._life = Lifetime("clawmode-calls", self._leave)
        self._programs = Programs(
            config=config,
            telemetry=telemetry,
            approvals=self.approvals,
            gate=gate,
            calls=self._calls,
            driver=self._driver,
            parking=self._parking,
            life=self._life,
        )

    def _use_bridge(self, bridge: Bridge) -> None:
        self._calls.bridge = bridge

    # ---- Now ----

    def cells(self) -> dict[str, float]:
        """Returns the ids of the cells that are not parked, with their start by `time.time`."""
        return {cell.id: cell.since for cell in self._driver.active.values()}

    def views(self) -> list[CellView]:
        """Returns the cells that run here, and the parked ones whose calls are made here."""
        groups, active = self._calls.groups, self._driver.active
        found = {each.id: CellView(each.id, each.parent_id) for each in active.values()}
        for group in groups.values():
            found.setdefault(group.run_id, CellView(group.run_id, group.parent_id))
        for view in found.values():
            cell, group = active.get(view.id), groups.get(view.id)
            if cell is not None:
                view.queued += cell.waiting
                view.pid = 0 if cell.tenancy is None else cell.tenancy.pid
            if group is not None:
                view.queued += len(group.queue)
                view.inputs = group.inputs()
        return list(found.values())

    async def unfinished(self) -> list[str]:
        """Returns the ids of the run's programs that wait, and that no process drives.

        Among them are programs whose process died during an `exec` with `durability: "effects"`,
        so that nobody got their ids.

        Raises:
            StoreUnavailable: The store cannot be read.
        """
        known = await self._parking.store.cells(self.context.scope)
        return [cell.id for cell in known if cell.state == "parked"]

    @property
    def idle(self) -> bool:
        """True if closing the object ends no cell and no call."""
        kept = self._parking.store.durable or not self._driver.exits.parked
        at_work = self._driver.active or self._calls.groups or self._driver.exits.owing
        return kept and not at_work

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` with the start, the updates and the end of every nested call.

        Returns:
            A function that stops this.
        """
        self.executor.watchers.append(watcher)
        return lambda: self.executor.watchers.remove(watcher)

    async def until_decided(self) -> None:
        """Waits while all programs that returned `waiting` wait for people only.

        An agent's loop calls this before it asks its model again, because until a person has
        answered, the model could only call `wait`.
        """
        await self._programs.until_decided()

    # ---- The end ----

    async def abort(self, run_id: str) -> bool:
        """Ends a cell, running or parked, here or in another process that shares the store.

        Returns:
            True if the cell has ended: none of its calls will start, and running calls were
            cancelled, in the other process too. A synchronous tool cannot be cancelled. False if
            there is no cell with this id.

        Raises:
            StoreUnavailable: The store cannot be read.
            AbortUnconfirmed: The other process has not confirmed the end within 5 s. It ends the
                cell as soon as it can.
        """
        return await self._driver.exits.abort(run_id)

    async def end_run(self) -> None:
        """Ends all cells of the run, and their calls.

        Includes cells that another process has resumed, but not cells that another process has
        started and never parked: only that process knows them.

        Raises:
            StoreUnavailable: Parked cells could not be deleted.
            AbortUnconfirmed: Another process has not confirmed the end of a cell within 5 s.
        """
        await self._end_all(session=False)

    async def end_session(self) -> None:
        """Ends the cells of all runs of the session, and their calls.

        Raises:
            StoreUnavailable: Parked cells could not be deleted.
            AbortUnconfirmed: Another process has not confirmed the end of a cell within 5 s.
        """
        await self._end_all(session=True)

    async def _end_all(self, *, session: bool) -> None:
        await self._driver.exits.end_all()
        for run_id in await self._parking.end_all(session=session):
            self.telemetry.snapshots["deleted"] += 1
            self._driver.exits.forget(run_id)

    async def _leave(self, tasks: TaskGroup) -> None:
        """Ends running cells, and those that are parked in memory."""
        self._programs.closed = True
        try:
            await self._driver.exits.abort_all()
            if not self._parking.store.durable:
                for run_id in list(self._driver.exits.parked):
                    await self._driver.exits.abort(run_id)
                await self._parking.drop_state()
            await self._programs.waits.dismiss()
            # A cell that has ended must not be continued from its checkpoint by somebody else.
            recorded = await self._driver.exits.catch_up_all()
            await self._parking.close(leave=recorded or not self._parking.effects)
        finally:
            tasks.cancel_scope.cancel()

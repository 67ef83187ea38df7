r"""Worker side: rejects cells that use modules, with a real JavaScript parser.

The parser is acorn, in a QuickJS VM of its own. tree-sitter would be faster, but it guesses where a
text is odd, and it parses hostile text in native code. acorn follows the standard, decodes `\u`
escapes in names, and a text that breaks it breaks a VM that is thrown away. acorn is loaded for the
few cells whose text could use a module at all (`Start.needs`).

Security does not depend on this module: the guest has no module loader. It gives a clear error.
"""

import wasmtime

from clawmode.sandbox.deadline import Arm
from clawmode.sandbox.machine import GUEST_STACK, Handles, Machine, guest_file
from clawmode.sandbox.source import HEAD, PreparedSource

HEAP = 256 << 20


class ModuleAccess(Exception):
    """The cell uses a module.

    Attributes:
        what: `import`, `import()`, `import.meta` or `require()`.
        line: Line of the submitted source, from 1.
        column: Column, from 1.
    """

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(what, line, column)
        self.what, self.line, self.column = what, line, column


class Guard:
    """A VM with acorn loaded, reset for every source.

    Args:
        engine: The worker's engine.
        module: QuickJS.
        acorn: The text of acorn.
        arm: Sets the deadline of a store.
    """

    def __init__(
        self,
        engine: wasmtime.Engine,
        module: wasmtime.Module,
        acorn: bytes,
        arm: Arm,
    ) -> None:
        self._engine, self._module, self._arm = engine, module, arm
        self._acorn = acorn
        self._machine: Machine | None = None
        self._image = b""
        self._check = 0

    def check(self, prepared: PreparedSource) -> None:
        """Checks one wrapped cell.

        Raises:
            ModuleAccess: The cell uses `import` or `require`.
        """
        machine = self._ready()
        try:
            result = machine.call_with_text(self._check, prepared.wrapped)
            if machine.is_exception(result):
                # Out of stack or memory. The cell is let through: the engine's own parser decides.
                self._machine = None
                return
            found = machine.text_of(result)
        except BaseException:
            self._machine = None
            raise
        if found:
            line, column, what = found.decode().split(" ", 2)
            shift = len(HEAD) if line == "1" else 0
            position = (int(line), max(int(column) - shift, 1))
            if prepared.line_map is not None:
                position = prepared.line_map.original(*position)
            raise ModuleAccess(what, *position)

    def _ready(self) -> Machine:
        """Returns the machine with its memory as it was after loading."""
        machine = self._machine
        if machine is None:
            machine = Machine(self._engine, self._module, fixed=True)
            self._arm(machine.instance.store)
            machine.export("_initialize")()
            machine.export("qjs_init")()
            machine.export("qjs_set_max_stack_size")(GUEST_STACK)
            machine.handles = Handles.bare(machine)
            machine.free_value(machine.evaluate(self._acorn, "acorn.js"))
            self._check = machine.evaluate(guest_file("guard.js"), "guard.js")
            machine.set_memory_limit(HEAP)
            self._machine = machine
            self._image = machine.instance.read(0, machine.instance.memory_size())
        else:
            grown = machine.instance.memory_size() - len(self._image)
            machine.instance.fill(len(self._image), grown)
            machine.instance.write(0, self._image)
        self._arm(machine.instance.store)
        return machine

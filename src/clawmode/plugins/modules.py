"""Imports the modules of a plugin from its folder, below a package name of their own.

So two plugins may both have a module `main`, and the modules of one plugin can import each other:
`from . import shelf`.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from clawmode.plugins.manifest import PluginError


def package_of(plugin_id: str) -> str:
    """Returns the name of the package that contains the modules of a plugin."""
    # Ids have single separators, so two different ids never give the same name.
    return "clawmode_plugin_" + plugin_id.replace("_", "__").replace("-", "_")


def import_from(folder: Path, plugin_id: str, module: str) -> ModuleType:
    """Imports a module from the folder of a plugin; modules imported before are discarded.

    Raises:
        PluginError: There is no such module.
        BaseException: The module raised it.
    """
    package = package_of(plugin_id)
    name = f"{package}.{module}"
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [os.path.abspath(folder)]
    forget(plugin_id)
    sys.modules[package] = module_from_spec(spec)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except BaseException as error:
        forget(plugin_id)
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise PluginError(f"the plugin has no module {module!r}") from None
        raise


def forget(plugin_id: str) -> dict[str, ModuleType]:
    """Removes the modules of a plugin from `sys.modules`, and returns them."""
    package = package_of(plugin_id)
    names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def set_aside(plugin_id: str) -> Iterator[None]:
    """Lets a block import other modules for a plugin; restores the previous modules afterwards."""
    before = forget(plugin_id)
    try:
        yield
    finally:
        forget(plugin_id)
        sys.modules.update(before)

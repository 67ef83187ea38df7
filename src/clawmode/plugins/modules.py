"""A plugin's modules: imported from its folder under names of their own, and taken back.

Two plugins may both have a `main`, and their modules can import one another: `from . import shelf`.
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
    """What the modules of a plugin's folder are imported below."""
    # An id has single separators: no two ids become one name.
    return "clawmode_plugin_" + plugin_id.replace("_", "__").replace("-", "_")


def import_from(folder: Path, plugin_id: str, module: str) -> ModuleType:
    """Imports a module of a plugin's folder, instead of any that was imported before.

    Raises:
        PluginError: It is not there.
        BaseException: Whatever the module raises.
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
            raise PluginError(f"its module {module!r} is not there") from None
        raise


def forget(plugin_id: str) -> dict[str, ModuleType]:
    """Forgets the modules of a plugin; returns them."""
    package = package_of(plugin_id)
    names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def set_aside(plugin_id: str) -> Iterator[None]:
    """A block in which a plugin's modules may be others; those of before are there again after."""
    before = forget(plugin_id)
    try:
        yield
    finally:
        forget(plugin_id)
        sys.modules.update(before)

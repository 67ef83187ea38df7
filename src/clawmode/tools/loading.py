"""Loads tools by references such as `module:attribute`.

The modules are the operator's own code, and run when they are imported. Every failure in them
becomes an error of one line that names the option and the place in the code.
"""

import contextlib
import difflib
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType

from clawmode.exceptions import ConfigurationError
from clawmode.tools.tool import Tool

FORM = "MODULE:ATTRIBUTE, such as examples.shop:TOOLS"
MAX_TOOLS = 100_000
MAX_REASON_CHARS = 300


def load_tools(references: Iterable[str]) -> list[Tool]:
    """Returns the tools of all references, in their order.

    An attribute is a `Tool`, a list of tools, or a callable without arguments that returns either.
    The current folder is searched for modules first, as `python -m` does.

    Raises:
        ConfigurationError: A reference has no tools, or two tools have the same id.
    """
    tools: list[Tool] = []
    origins: dict[str, str] = {}
    for reference in references:
        for tool in _Reference(reference).load():
            if tool.id in origins:
                text = f"two tools have the id {tool.id!r}; the other is from {origins[tool.id]!r}"
                raise _wrong(reference, text)
            origins[tool.id] = reference
            tools.append(tool)
    return tools


class _Reference:
    """One reference of the form `module:attribute`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._module, colon, self._attribute = text.partition(":")
        if not (colon and self._module and self._attribute):
            raise _wrong(text, f"expected {FORM}")

    def load(self) -> list[Tool]:
        found: object = self._import()
        for part in self._attribute.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                near = difflib.get_close_matches(part, dir(found), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                text = f"{self._module!r} has no {self._attribute!r}{hint}"
                raise _wrong(self._text, text) from None
            except Exception as error:
                raise self._broken(f"looking up {part!r}", error) from None
        if not isinstance(found, Tool) and callable(found):
            found = self._call(found)
        return [found] if isinstance(found, Tool) else self._listed(found)

    def _import(self) -> ModuleType:
        name = self._module
        if not all(part.isidentifier() for part in name.split(".")):
            text = f"{name!r} is not the name of a module; expected {FORM}"
            raise _wrong(self._text, text)
        with contextlib.suppress(OSError):  # the current folder may have been deleted
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not f"{name}.".startswith(f"{missing}."):
                raise self._broken(f"importing {name!r}", error) from None
            text = f"there is no module {missing!r} in the current folder, and none installed"
            if name.endswith(".py"):
                text += f"; for a file, leave out the ending: {name[:-3]}:{self._attribute}"
            raise _wrong(self._text, text) from None
        except (Exception, SystemExit) as error:
            raise self._broken(f"importing {name!r}", error) from None

    def _call(self, function: Callable[..., object]) -> object:
        try:
            # Some functions written in C have no signature (ValueError): these are just called.
            with contextlib.suppress(ValueError):
                inspect.signature(function).bind()
        except TypeError:
            text = (
                f"{self._attribute!r} takes arguments: decorate it with @tool, or name a callable "
                "without arguments that returns tools"
            )
            raise _wrong(self._text, text) from None
        try:
            answer = function()
        except (Exception, SystemExit) as error:
            raise self._broken(f"calling {self._attribute!r}", error) from None
        if inspect.iscoroutine(answer):
            answer.close()
            raise _wrong(self._text, f"{self._attribute!r} is async, expected a plain callable")
        return answer

    def _listed(self, found: object) -> list[Tool]:
        if isinstance(found, (str, bytes, dict)) or not isinstance(found, Iterable):
            text = f"{self._attribute!r} gives {_kind(found)}, expected a Tool or a list of Tools"
            raise _wrong(self._text, text)
        try:
            items = list(islice(found, MAX_TOOLS + 1))
        except Exception as error:
            raise self._broken(f"iterating over {self._attribute!r}", error) from None
        if len(items) > MAX_TOOLS:
            raise _wrong(self._text, f"{self._attribute!r} has more than {MAX_TOOLS} tools")
        tools = [item for item in items if isinstance(item, Tool)]
        if len(tools) < len(items):
            wrong = next(n for n, item in enumerate(items) if not isinstance(item, Tool))
            text = (
                f"item {wrong} of {self._attribute!r} is {_kind(items[wrong])}, not a Tool; "
                "@tool makes one of a function"
            )
            raise _wrong(self._text, text)
        return tools

    def _broken(self, action: str, error: BaseException) -> ConfigurationError:
        message = " ".join(str(error).split())[:MAX_REASON_CHARS]
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        # With the innermost place in the operator's own code. A `SyntaxError` has it already.
        others = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
        others |= {str(Path(__file__).parents[1]), "<"}
        frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
        for frame in reversed(frames):
            if not frame.filename.startswith(tuple(others)):
                reason += f" ({frame.filename}, line {frame.lineno})"
                break
        return _wrong(self._text, f"{action} failed: {reason}")


def _wrong(reference: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"--tools {reference}: {text}", path="--tools", expected=FORM)


def _kind(value: object) -> str:
    if inspect.isfunction(value):
        return f"the function {value.__name__!r}"
    return "None" if value is None else f"a value of type {type(value).__name__!r}"

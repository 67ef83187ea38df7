"""A Python runtime that gives a language model two tools, `exec` and `wait`.

Names are looked up when they are first used: a worker imports this package too, and what it loads
is its start-up time and its attack surface.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clawmode.code_mode import CodeMode
    from clawmode.config import CodeModeConfig
    from clawmode.context import RunContext
    from clawmode.exceptions import ClawmodeError, ErrorCode
    from clawmode.results import CodeModeResult
    from clawmode.sandbox.pool import Pool

__all__ = [
    "ClawmodeError",
    "CodeMode",
    "CodeModeConfig",
    "CodeModeResult",
    "ErrorCode",
    "Pool",
    "RunContext",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "ClawmodeError": "exceptions",
    "CodeMode": "code_mode",
    "CodeModeConfig": "config",
    "CodeModeResult": "results",
    "ErrorCode": "exceptions",
    "Pool": "sandbox.pool",
    "RunContext": "context",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clawmode' has no attribute {name!r}")
    return getattr(import_module(f"clawmode.{_HOMES[name]}"), name)

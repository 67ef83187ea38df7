"""The table of all methods that clients can call."""

from collections.abc import Mapping

from clawmode.gateway import (
    admin_methods,
    approval_methods,
    codemode_methods,
    config_methods,
    history_methods,
    live_methods,
    operation_methods,
    run_methods,
    session_methods,
    surface_methods,
    tool_methods,
)
from clawmode.gateway.methods import Method

_METHODS = (
    *run_methods.METHODS,
    *live_methods.METHODS,
    *session_methods.METHODS,
    *history_methods.METHODS,
    *tool_methods.METHODS,
    *surface_methods.METHODS,
    *approval_methods.METHODS,
    *codemode_methods.METHODS,
    *operation_methods.METHODS,
    *config_methods.METHODS,
    *admin_methods.METHODS,
)
METHODS: Mapping[str, Method] = {method.name: method for method in _METHODS}
"""The methods by name."""

assert len(METHODS) == len(_METHODS), "two methods have the same name"

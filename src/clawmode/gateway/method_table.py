"""All methods that clients can call."""

from collections.abc import Mapping

from clawmode.gateway import (
    approval_methods,
    codemode_methods,
    config_methods,
    operation_methods,
    run_methods,
    session_methods,
    tool_methods,
)
from clawmode.gateway.methods import Method, table

METHODS: Mapping[str, Method] = table(
    *run_methods.METHODS,
    *session_methods.METHODS,
    *tool_methods.METHODS,
    *approval_methods.METHODS,
    *codemode_methods.METHODS,
    *operation_methods.METHODS,
    *config_methods.METHODS,
)

"""All methods that clients can call."""

from collections.abc import Mapping

from clawmode.gateway import run_methods, session_methods
from clawmode.gateway.methods import Method, table

METHODS: Mapping[str, Method] = table(*run_methods.METHODS, *session_methods.METHODS)

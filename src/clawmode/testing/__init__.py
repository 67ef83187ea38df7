"""Test doubles for agents: a model that plays a script, and an HTTP server that does."""

from clawmode.testing.script_server import ScriptServer, ServedRequest
from clawmode.testing.scripted import (
    Raw,
    ScriptedModel,
    ScriptRequest,
    Turn,
    call,
    pause,
    text,
    think,
)

__all__ = [
    "Raw",
    "ScriptRequest",
    "ScriptServer",
    "ScriptedModel",
    "ServedRequest",
    "Turn",
    "call",
    "pause",
    "text",
    "think",
]

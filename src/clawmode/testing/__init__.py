"""What helps to test agents: a model that plays a script, and a server that does over the wire."""

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

"""The system prompt: stable from request to request, so that providers can cache it."""

from pathlib import Path

BASE = (
    "You are an agent that works for a person by calling tools. Do what is asked with as few "
    "calls as it takes, say plainly what you did and what you could not do, and do not claim what "
    "no tool has shown you."
)


def build(*, workspace: Path, extra: str = "") -> str:
    """The prompt of one run.

    Args:
        workspace: The folder that it works in.
        extra: Added by whoever asked.
    """
    parts = [BASE, f"Your workspace is {workspace}.", extra.strip()]
    return "\n\n".join(part for part in parts if part)

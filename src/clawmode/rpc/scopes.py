"""Scopes: what a client may do, which events it may see, and which scopes include others."""

from typing import Literal, TypeAlias, get_args

Scope: TypeAlias = Literal[
    "operator.read", "operator.write", "operator.admin", "operator.approvals"
]
SCOPES: tuple[Scope, ...] = get_args(Scope)

INCLUDED: dict[Scope, frozenset[Scope]] = {
    "operator.read": frozenset({"operator.read"}),
    "operator.write": frozenset({"operator.read", "operator.write"}),
    # Not included in `write`: a client that starts runs need not be one that approves their calls.
    "operator.approvals": frozenset({"operator.approvals"}),
    "operator.admin": frozenset(SCOPES),
}

EVENTS: dict[str, Scope | None] = {
    "connect.challenge": None,
    "tick": None,
    "shutdown": None,
    "health": "operator.read",
    "agent": "operator.read",
    "chat": "operator.read",
    "session.message": "operator.read",
    "session.tool": "operator.read",
    "sessions.changed": "operator.read",
    "runs.changed": "operator.read",
    "diagnostics": "operator.read",
    "cron": "operator.read",
    "tool.call": "operator.write",
    "exec.approval.requested": "operator.approvals",
    "exec.approval.resolved": "operator.approvals",
    "plugin.approval.requested": "operator.approvals",
    "plugin.approval.resolved": "operator.approvals",
    "approval.group.requested": "operator.approvals",
    "approval.group.resolved": "operator.approvals",
    "input.requested": "operator.approvals",
    "input.resolved": "operator.approvals",
}
"""The scope that an event needs; None: every connected client sees it. An event that is not listed
here is sent to nobody."""


def expand(scopes: tuple[str, ...]) -> frozenset[Scope]:
    """Returns the scopes and all that they include. Unknown names are ignored."""
    return frozenset[Scope]().union(*(INCLUDED[scope] for scope in SCOPES if scope in scopes))


def granted(held: tuple[str, ...], wanted: tuple[str, ...]) -> frozenset[Scope]:
    """Returns the scopes of a client.

    Args:
        held: The scopes of its token.
        wanted: The scopes that the client requests; empty for all that the token has.
    """
    available = expand(held)
    return available & expand(wanted) if wanted else available


def may_see(event: str, scopes: frozenset[Scope]) -> bool:
    """Returns whether a client with these scopes may receive an event."""
    if event not in EVENTS:
        return False
    needed = EVENTS[event]
    return needed is None or needed in scopes

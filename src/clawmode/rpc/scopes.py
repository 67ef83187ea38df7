"""Who may do and see what: scopes, and which of them include others."""

from typing import Literal, TypeAlias, get_args

Scope: TypeAlias = Literal[
    "operator.read", "operator.write", "operator.admin", "operator.approvals"
]
SCOPES: tuple[Scope, ...] = get_args(Scope)

INCLUDED: dict[Scope, frozenset[Scope]] = {
    "operator.read": frozenset({"operator.read"}),
    "operator.write": frozenset({"operator.read", "operator.write"}),
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
    "diagnostics": "operator.read",
    "cron": "operator.read",
    "tool.call": "operator.write",
    "exec.approval.requested": "operator.approvals",
    "exec.approval.resolved": "operator.approvals",
    "plugin.approval.requested": "operator.approvals",
    "plugin.approval.resolved": "operator.approvals",
    "input.requested": "operator.approvals",
    "input.resolved": "operator.approvals",
}
"""Which scope an event needs; None: every client that is connected. Others are seen by nobody."""


def expand(scopes: tuple[str, ...]) -> frozenset[Scope]:
    """All that these come to; what is none is left out."""
    return frozenset[Scope]().union(*(INCLUDED[it] for it in SCOPES if it in scopes))


def granted(held: tuple[str, ...], wanted: tuple[str, ...]) -> frozenset[Scope]:
    """What a client gets that holds some and wants some; who wants none in particular gets all."""
    mine = expand(held)
    return mine & expand(wanted) if wanted else mine


def may_see(event: str, scopes: frozenset[Scope]) -> bool:
    """Whether a client with these scopes is told of an event."""
    if event not in EVENTS:
        return False
    needed = EVENTS[event]
    return needed is None or needed in scopes

"""Keys and ids of sessions, ids of agents, and errors about them.

Keys and ids come from clients, so they are checked, and normalized to lower case. Ids become parts
of paths; keys never do.
"""

import contextlib
import re
from typing import ClassVar

from clawmode.exceptions import ClawmodeError

MAX_KEY_CHARS = 256

_AGENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_REST = re.compile(r"[a-z0-9+@#!$&=~_*-][a-z0-9+@#!$&=~_*.:-]*")
_ID = re.compile(r"[0-9a-f]{32}")


class SessionError(ClawmodeError):
    """A session cannot be found or used."""

    code: ClassVar[str] = "session_unavailable"


class InvalidSession(SessionError):
    """A key, an id or a value that is to be stored with a session is invalid."""

    code: ClassVar[str] = "invalid_session"


class UnknownSession(SessionError):
    """There is no session with this id or key.

    Attributes:
        near: Similar ids or keys.
    """

    code: ClassVar[str] = "unknown_session"

    def __init__(self, message: str, near: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.near = near


def check_agent_id(agent_id: str) -> str:
    """Returns the id of an agent in lower case, as it is used in keys and paths.

    Raises:
        InvalidSession: The id is invalid.
    """
    # ASCII first: there are other letters whose lower case is an ASCII letter.
    if agent_id.isascii() and _AGENT.fullmatch(agent_id.lower()):
        return agent_id.lower()
    raise InvalidSession(
        f"{agent_id[:80]!r} is not a valid agent id: use up to 64 letters, digits, `_` and `-`, "
        "with a letter or a digit first."
    )


def session_key(key: str | None = None, agent_id: str | None = None) -> str:
    """Returns a complete key, `agent:<agentId>:<rest>`, in lower case.

    Args:
        key: The key, with or without the agent; None for the agent's main session.
        agent_id: The agent if the key names none; `main` if this is None too.

    Raises:
        InvalidSession: The key is invalid, or names another agent.
    """
    owner = None if agent_id is None else check_agent_id(agent_id)
    given = "main" if key is None else key
    rest = given.lower() if given.isascii() and len(given) <= MAX_KEY_CHARS else ""
    if rest.startswith("agent:"):
        named, _, rest = rest.removeprefix("agent:").partition(":")
        named = check_agent_id(named)
        if owner not in (None, named):
            raise InvalidSession(
                f"The session key {given!r} belongs to the agent {named!r}, not to {owner!r}."
            )
        owner = named
    made = f"agent:{owner or 'main'}:{rest}"
    if max(len(given), len(made)) > MAX_KEY_CHARS:
        raise InvalidSession(
            f"The session key has {max(len(given), len(made))} characters; at most "
            f"{MAX_KEY_CHARS} are allowed."
        )
    if not _REST.fullmatch(rest) or ".." in rest or rest.endswith(":") or "::" in rest:
        raise InvalidSession(
            f"{given[:80]!r} is not a valid session key: use `agent:<agentId>:<name>` or a name, "
            "with ASCII letters, digits and `:._-+@#!$&=~*`, without `..` and `::`."
        )
    return made


def check_session_id(session_id: str) -> str:
    """Returns the id of a session in lower case, without the dashes of a UUID.

    Raises:
        InvalidSession: The id is invalid.
    """
    plain = session_id.lower().replace("-", "") if len(session_id) <= 36 else ""
    if session_id.isascii() and _ID.fullmatch(plain):
        return plain
    raise InvalidSession(
        f"{session_id[:80]!r} is not a valid session id, which has 32 hexadecimal digits."
    )


def is_session_id(text: str) -> bool:
    """True if a text is the id of a session, not a key."""
    with contextlib.suppress(InvalidSession):
        return bool(check_session_id(text))
    return False

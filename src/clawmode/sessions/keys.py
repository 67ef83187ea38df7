"""What sessions and agents may be called: keys and ids, as they are kept.

They come from clients. Ids become parts of paths, keys never do.
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
    """A session that cannot be had."""

    code: ClassVar[str] = "session_unavailable"


class InvalidSession(SessionError):
    """What was given can be no key, no id, or nothing that is kept about a session."""

    code: ClassVar[str] = "invalid_session"


def check_agent_id(agent_id: str) -> str:
    """An agent's id as it is kept, in small letters: it is part of keys and of paths.

    Raises:
        InvalidSession: It can be none.
    """
    # Before it is made small: there are foreign letters whose small forms are ours.
    if agent_id.isascii() and _AGENT.fullmatch(agent_id.lower()):
        return agent_id.lower()
    raise InvalidSession(
        f"{agent_id[:80]!r} is no id of an agent: that is up to 64 letters, digits, `_` and `-`, "
        "with a letter or a digit first."
    )


def session_key(key: str | None = None, agent_id: str | None = None) -> str:
    """A key as it is kept: `agent:<agentId>:<rest>`, in small letters.

    Args:
        key: With or without the agent; without any, the agent's main one is meant.
        agent_id: Whose it is, if it does not say so. `main`, if nobody does.

    Raises:
        InvalidSession: It can be none, or is another agent's.
    """
    owner = None if agent_id is None else check_agent_id(agent_id)
    given = "main" if key is None else key
    if len(given) > MAX_KEY_CHARS:
        raise InvalidSession(
            f"A session key has up to {MAX_KEY_CHARS} characters, not {len(given)}."
        )
    rest = given.lower() if given.isascii() else ""
    if rest.startswith("agent:"):
        named, _, rest = rest.removeprefix("agent:").partition(":")
        named = check_agent_id(named)
        if owner not in (None, named):
            raise InvalidSession(f"The session key {given!r} is not one of the agent {owner!r}.")
        owner = named
    if not _REST.fullmatch(rest) or ".." in rest or rest.endswith(":") or "::" in rest:
        raise InvalidSession(
            f"{given[:80]!r} is no session key: that is `agent:<agentId>:<name>`, or a name, of "
            "ASCII letters, digits and `:._-+@#!$&=~*`, without `..` and `::`."
        )
    made = f"agent:{owner or 'main'}:{rest}"
    if len(made) > MAX_KEY_CHARS:
        raise InvalidSession(
            f"A session key has up to {MAX_KEY_CHARS} characters, not {len(made)}."
        )
    return made


def check_session_id(session_id: str) -> str:
    """A session's id as it is kept.

    Raises:
        InvalidSession: It can be none.
    """
    plain = session_id.lower().replace("-", "") if len(session_id) <= 36 else ""
    if session_id.isascii() and _ID.fullmatch(plain):
        return plain
    raise InvalidSession(f"{session_id[:80]!r} is no session id: that is 32 hexadecimal digits.")


def is_session_id(text: str) -> bool:
    """Whether a text can be an id; if not, it is a key."""
    with contextlib.suppress(InvalidSession):
        return bool(check_session_id(text))
    return False

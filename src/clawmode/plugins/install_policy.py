"""`security.installPolicy`: what the operator allows to be installed; hooks are asked later.

    deny            a matching rule refuses
    allow           a matching rule allows
    default         decides if no rule matches
    command         a program that is asked last, unless the rules refused

A program that cannot be run, fails, times out or answers nonsense refuses.
"""

import json
import os
import signal
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING

import anyio

from clawmode.exceptions import ConfigurationError
from clawmode.plugins.staging import Material
from clawmode.tasks import signal_group
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.config.operations import InstallPolicy

PATH = "security.installPolicy"
KINDS = ("plugin:", "skill:", "from:")
MAX_ANSWER = 64 << 10
MAX_REASON = 500
POLL, GRACE = 0.01, 2.0


class _NoAnswer(Exception):
    """The program gave no valid answer."""


async def decide(policy: "InstallPolicy", material: Material) -> str | None:
    """Returns the reason of a refusal, or None if the installation is allowed.

    Raises:
        ConfigurationError: A rule is not valid; nothing is installed then.
    """
    refusal = by_rules(policy, material)
    if refusal is not None or policy.command is None:
        return refusal
    try:
        return await _ask(policy.command, policy.timeout_ms / 1000, material.to_json())
    except _NoAnswer as error:
        return f"{PATH}.command: {error}"


# ---- Rules ----


def by_rules(policy: "InstallPolicy", material: Material) -> str | None:
    """Returns the reason why the rules refuse, or None."""
    subjects = (f"{material.kind}:{material.name}", f"from:{material.source}")
    denied = _first_match("deny", policy.deny, subjects)
    if denied is not None:
        return f"{PATH}.deny contains {denied!r}"
    if _first_match("allow", policy.allow, subjects) is None and policy.default == "deny":
        return f"no rule in {PATH}.allow matches {subjects[0]!r} or {subjects[1]!r}"
    return None


def _first_match(key: str, rules: Sequence[str], subjects: Sequence[str]) -> str | None:
    for rule in rules:
        if not rule.startswith(("*", *KINDS)):  # such a rule would silently match nothing
            listed = ", ".join(f"{kind}…" for kind in KINDS)
            raise ConfigurationError(f"{PATH}.{key}: {rule!r} is not a rule; expected {listed}")
        home = rule.removeprefix("from:")
        pattern = f"from:{os.path.expanduser(home)}" if rule.startswith("from:~") else rule
        if any(fnmatchcase(subject, pattern) for subject in subjects):
            return rule
    return None


# ---- The program ----


async def _ask(command: Sequence[str], seconds: float, about: JsonObject) -> str | None:
    try:
        answer = json.loads(await _run(command, seconds, json.dumps(about).encode()))
    except (ValueError, RecursionError):
        raise _NoAnswer("the program did not print JSON") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("allow"), bool):
        raise _NoAnswer("the program did not print {allow, reason}")
    reason = answer.get("reason")
    if not isinstance(reason, str | None):
        raise _NoAnswer("`reason` is not a text")
    if answer["allow"]:
        return None
    return f"{PATH}.command: {(reason or 'the program gave no reason')[:MAX_REASON]}"


async def _run(command: Sequence[str], seconds: float, request: bytes) -> bytes:
    """Runs the program and returns its output.

    The program gets files instead of pipes, so that a background process it leaves behind cannot
    keep us waiting.
    """
    if not command:
        raise _NoAnswer("the command is empty")
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(request)
        stdin.seek(0)
        try:
            process = await anyio.open_process(
                command, stdin=stdin, stdout=stdout, stderr=None, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _NoAnswer(f"{command[0]!r} cannot be run: {reason}") from None
        try:
            deadline = anyio.current_time() + seconds
            while process.returncode is None:
                if anyio.current_time() >= deadline:
                    raise _NoAnswer(f"the program did not end within {seconds:g} seconds")
                await anyio.sleep(POLL)
                _check_size(stdout)
            _check_size(stdout)
        finally:
            signal_group(process, signal.SIGKILL)
            with anyio.move_on_after(GRACE, shield=True):
                await process.wait()
        if process.returncode != 0:
            raise _NoAnswer(f"the program ended with exit status {process.returncode}")
        stdout.seek(0)
        return stdout.read()


def _check_size(stdout: IO[bytes]) -> None:
    if os.fstat(stdout.fileno()).st_size > MAX_ANSWER:
        raise _NoAnswer(f"the program printed more than {MAX_ANSWER} bytes")

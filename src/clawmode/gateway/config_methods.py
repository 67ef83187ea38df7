"""The methods `config.*`: read the configuration file without secrets, replace it, reload it."""

import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from clawmode.app.secrets import known_secrets
from clawmode.app.setup import state_folder
from clawmode.config import file as config_file
from clawmode.config import json5
from clawmode.config import resolve as settings
from clawmode.config import trust as config_trust
from clawmode.config.file import variable_name
from clawmode.config.resolve import Configuration
from clawmode.exceptions import ConfigurationError
from clawmode.files import staged
from clawmode.gateway.methods import NAME, TEXT, MethodCall, method, params
from clawmode.gateway.reload import CheckedConfiguration, check, reload
from clawmode.records import member_schema, schema_of
from clawmode.redaction import Redactor
from clawmode.rpc.protocol import RpcError
from clawmode.sections import Section
from clawmode.text import HIDDEN
from clawmode.types import JsonObject, JsonValue, children

if TYPE_CHECKING:
    from clawmode.app.host import Host

MAX_RAW = 1 << 20
"""The bytes of the largest file whose text is shown."""

PLAIN = ("true", "false", "null", "")

# Two clients that write at the same time must not both pass the check of `baseHash`.
_writing = threading.Lock()


# ---- Reading ----


async def _get(call: MethodCall) -> JsonObject:
    setup = call.host.setup
    if setup.file is None:
        return {"path": None, "exists": False, "valid": True, "config": {}, "issues": []}
    checked, data, digest = await anyio.to_thread.run_sync(_read, setup.file, call.host)
    redactor = Redactor(known_secrets(setup))
    return {
        "path": str(setup.file),
        "exists": setup.file.exists(),
        "valid": not checked.report.errors,
        "hash": digest,
        "config": redactor.value(without_secrets(Configuration, data)),
        "raw": await anyio.to_thread.run_sync(_raw, setup.file, data is not None, redactor),
        "issues": checked.issues,
        "warnings": checked.warnings,
    }


def _read(path: Path, host: "Host") -> tuple[CheckedConfiguration, JsonValue, str]:
    data: JsonValue = None
    with suppress(ConfigurationError):
        data = config_file.load(path).data
    return check(path, host), data, _digest(path)


def _digest(path: Path) -> str:
    """Returns the hash of the file's content; empty if the file cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def without_secrets(kind: type[Section], value: JsonValue) -> JsonValue:
    """Returns a section with secrets redacted: options marked as secret, and unknown options."""
    schema = schema_of(kind)

    def show(node: Mapping[str, Any], value: JsonValue) -> JsonValue:
        if isinstance(value, dict) and "writeOnly" not in node:
            return {key: show(member_schema(schema, node, key), it) for key, it in value.items()}
        if isinstance(value, list) and "writeOnly" not in node:
            return [show(member_schema(schema, node, n), it) for n, it in enumerate(value)]
        # A text that was written instead of an object may be a secret too.
        is_known = node.get("type") not in (None, "object", "array")
        return value if is_known and "writeOnly" not in node else _hidden(value)

    return show(schema, value)


def _raw(path: Path, valid: bool, redactor: Redactor) -> str | None:
    """Returns the text of the file with its lines and columns of keys, but without secrets.

    Null if the file cannot be read, or is not JSON5. In a file that cannot be parsed, nobody knows
    which text is a secret, so everything but the names of options is redacted.
    """
    try:
        text = path.read_text("utf-8-sig") if path.stat().st_size <= MAX_RAW else None
    except (OSError, ValueError):
        text = None
    if text is None or path.suffix == ".toml":
        return None
    shown = (redactor.text(line) for line in _blanked(text, valid).split("\n"))
    return "\n".join(shown)


def _blanked(text: str, valid: bool) -> str:
    schema, made, done = schema_of(Configuration), list[str](), 0
    for token, is_key, parts in json5.values(text, valid=valid):
        word = token.group()
        inner = word.strip("\"'")
        node: Mapping[str, Any] = schema
        for part in parts:
            node = {} if "writeOnly" in node else member_schema(schema, node, part)
        if is_key:
            # In a broken text, a part of a secret may look like a key.
            shown = valid or inner in _option_names()
        else:
            is_known = valid and node.get("type") not in (None, "object", "array")
            shown = is_known and "writeOnly" not in node
        if shown or inner in PLAIN or variable_name(inner):
            continue
        lines = "\n" * word.count("\n")
        made += [text[done : token.start()], f'"{HIDDEN}"{lines}']
        done = token.end()
    return "".join([*made, text[done:]])


@functools.cache
def _option_names() -> frozenset[str]:
    """Returns the names of all options of a configuration."""
    found: set[str] = set()
    level: list[Any] = [settings.schema()]
    while level:
        node = level.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            found |= properties.keys() if isinstance(properties, dict) else set()
        level += children(node)
    return frozenset(found)


def _hidden(value: JsonValue) -> JsonValue:
    """Redacts a value. Keys stay, and so do references to `${VARIABLES}`."""
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return value if isinstance(value, str) and variable_name(value) else HIDDEN


async def _schema(call: MethodCall) -> JsonObject:
    return {"schema": settings.schema()}


# ---- Replacing ----


async def _set(call: MethodCall) -> JsonObject:
    """Writes the configuration file if the new content is valid. A reload applies it."""
    path = call.host.setup.file
    if path is None:
        text = "the gateway has no configuration file: start it with `--config FILE`"
        raise RpcError("CONFLICT", text)
    raw, base = call.params.text("raw"), call.params.text("baseHash")
    try:
        checked = await anyio.to_thread.run_sync(_write, path, raw, base, call.host)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RpcError("UNAVAILABLE", f"{path.name} cannot be written: {reason}") from None
    return {
        "path": str(path),
        "hash": hashlib.sha256(raw.encode()).hexdigest(),
        "backup": f"{path}.bak",
        "warnings": checked.warnings,
    }


def _write(path: Path, raw: str, base: str, host: "Host") -> CheckedConfiguration:
    """Replaces the file atomically; the old content goes to a file with the suffix `.bak`."""
    try:
        data = raw.encode()
    except UnicodeEncodeError:
        raise RpcError("INVALID_REQUEST", "`raw` cannot be encoded as UTF-8", field="raw") from None
    # A symbolic link stays, and the file that it points to is replaced.
    path = Path(os.path.realpath(path))
    with _writing:
        if base and base != _digest(path):
            text = "the file has changed since `config.get`: read it again"
            raise RpcError("CONFLICT", text, field="baseHash")
        with staged(path, data) as new:
            checked = check(new, host)
            if checked.report.errors:
                raise checked.error("raw")
            _check_secrets(new)
            if path.exists():
                shutil.copymode(path, new)
                with staged(path, path.read_bytes()) as copy:
                    shutil.copymode(path, copy)
                    os.replace(copy, f"{path}.bak")
            before = _digest(path)
            os.replace(new, path)
            if config_trust.is_trusted(path, before, state_folder()):
                # Otherwise the next start would ask whether to trust what the operator has written.
                config_trust.trust(path, hashlib.sha256(data).hexdigest(), state_folder())
    return checked


def _check_secrets(path: Path) -> None:
    """Rejects content that was copied from `config.get`: its secrets would be lost."""
    level: list[JsonValue] = [config_file.load(path).data]
    while level:
        value = level.pop()
        if value == HIDDEN:
            text = (
                f"{HIDDEN!r} replaces a secret in `config.get`: write the secret, or ${{VARIABLE}}"
            )
            raise RpcError("INVALID_REQUEST", text, field="raw")
        level += children(value)


METHODS = (
    method("config.get", "operator.admin", _get),
    method("config.schema", "operator.admin", _schema),
    method(
        "config.set",
        "operator.admin",
        _set,
        params("raw", raw=TEXT, baseHash=NAME),
        effect=True,
        repeatable=True,
    ),
    method("config.reload", "operator.admin", lambda call: reload(call.gateway)),
)

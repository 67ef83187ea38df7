"""`config.*`: the configuration file looked at without its secrets, replaced, and read again."""

import hashlib
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import anyio

from clawmode.app.host import Host
from clawmode.app.secrets import known_secrets
from clawmode.app.setup import state_folder
from clawmode.config import file as config_file
from clawmode.config import resolve as settings
from clawmode.config import trust as config_trust
from clawmode.config.reader import Option, Section, is_section, members
from clawmode.config.resolve import Configuration
from clawmode.config.variables import variable
from clawmode.exceptions import ConfigurationError
from clawmode.files import staged
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import NAME, TEXT, Params, method, params
from clawmode.gateway.reload import CheckedConfiguration, examine, refuse, reload
from clawmode.redaction import HIDDEN, Redactor
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue

_writing = threading.Lock()


# ---- Looking ----


async def _get(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    setup = gateway.host.setup
    if setup.file is None:
        return {"path": None, "exists": False, "valid": True, "config": {}, "issues": []}
    found, data, name = await anyio.to_thread.run_sync(_look, setup.file, gateway.host)
    redactor = Redactor(known_secrets(setup))
    return {
        "path": str(setup.file),
        "exists": setup.file.exists(),
        "valid": not found.report.errors,
        "hash": name,
        "config": redactor.value(struck_out(Configuration, data)),
        "issues": found.issues,
    }


def _look(path: Path, host: Host) -> tuple[CheckedConfiguration, JsonValue, str]:
    data: JsonValue = None
    with suppress(ConfigurationError):
        data = config_file.load(path).data
    return examine(path, host), data, _digest(path)


def _digest(path: Path) -> str:
    """Names what the file says; empty if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def struck_out(kind: type[Section], value: JsonValue) -> JsonValue:
    """A section without what is marked as secret, and without what nobody knows."""
    if not isinstance(value, dict):
        return _hidden(value)
    known = members(kind)
    return {
        key: _member(known[key].kind, known[key].option, item) if key in known else _hidden(item)
        for key, item in value.items()
    }


def _member(kind: Any, about: Option, value: JsonValue) -> JsonValue:
    if about.secret:
        return _hidden(value)
    if is_section(kind):
        if about.shorthand and not isinstance(value, dict):
            member = members(kind)[about.shorthand]
            return _member(member.kind, member.option, value)
        return struck_out(kind, value)
    inner = get_args(kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        return [_member(inner[0], about, item) for item in value]
    if get_origin(kind) is dict and isinstance(value, dict) and is_section(inner[1]):
        return {key: struck_out(inner[1], item) for key, item in value.items()}
    return value


def _hidden(value: JsonValue) -> JsonValue:
    """Names stay, and so do variables that secrets are in."""
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return value if isinstance(value, str) and variable(value) else HIDDEN


async def _schema(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    return {"schema": settings.schema()}


# ---- Replacing ----


async def _set(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Writes another configuration, if there is nothing wrong with it. It holds when reloaded."""
    path = gateway.host.setup.file
    if path is None:
        text = "the gateway was started without a configuration file: start it with --config"
        raise RpcError("CONFLICT", text)
    raw, base = given.text("raw"), given.text("baseHash")
    try:
        found = await anyio.to_thread.run_sync(_write, path, raw, base, gateway.host)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RpcError("UNAVAILABLE", f"{path.name} cannot be written: {reason}") from None
    return {
        "path": str(path),
        "hash": hashlib.sha256(raw.encode()).hexdigest(),
        "backup": f"{path}.bak",
        "warnings": found.warnings,
    }


def _write(path: Path, raw: str, base: str, host: Host) -> CheckedConfiguration:
    """Replaces the file in one step; what it was is beside it."""
    try:
        data = raw.encode()
    except UnicodeEncodeError:
        raise RpcError("INVALID_REQUEST", "this cannot be written as UTF-8", field="raw") from None
    path = Path(os.path.realpath(path))
    with _writing:
        if base and base != _digest(path):
            text = "the file has changed meanwhile: read it again"
            raise RpcError("CONFLICT", text, field="baseHash")
        with staged(path, data) as new:
            found = examine(new, host)
            if found.report.errors:
                raise refuse(found, "raw")
            _check_secrets(new)
            if path.exists():
                shutil.copymode(path, new)
                _back_up(path)
            before = _digest(path)
            os.replace(new, path)
            if config_trust.is_trusted(path, before, state_folder()):
                # Else the next start would ask about what the operator has just written.
                config_trust.trust(path, hashlib.sha256(data).hexdigest(), state_folder())
    return found


def _back_up(path: Path) -> None:
    with staged(path, path.read_bytes()) as copy:
        shutil.copymode(path, copy)
        os.replace(copy, f"{path}.bak")


def _check_secrets(path: Path) -> None:
    """Whoever sends back what `config.get` showed would lose the secrets."""
    level: list[JsonValue] = [config_file.load(path).data]
    while level:
        value = level.pop()
        if value == HIDDEN:
            text = f"{HIDDEN!r} stands for a secret that was not shown: write it, or ${{VARIABLE}}"
            raise RpcError("INVALID_REQUEST", text, field="raw")
        if isinstance(value, dict):
            level += value.values()
        elif isinstance(value, list):
            level += value


async def _reload(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    return await reload(gateway)


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
    method("config.reload", "operator.admin", _reload),
)

"""The files of other MCP clients: where their servers are, and what their entries mean.

Claude Code and Claude Desktop, Cursor, Windsurf, Gemini CLI, Copilot, Cline and Roo write
`mcpServers`; VS Code `servers` with `inputs`; Codex `mcp_servers` in TOML; Zed `context_servers`;
opencode and Crush put their entries into `mcp`. An entry is translated into one of ours. Limits of
a client hold here too, or a warning says that they do not.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from clawmode.config.mcp_values import InputField
from clawmode.exceptions import ConfigWarning
from clawmode.records import join
from clawmode.types import JsonObject, JsonValue, change_texts, dataclass

URL_KEYS = ("httpUrl", "url", "serverUrl")
"""Our key, and the keys that some other clients use instead; the first that is set is used."""

SECTIONS = ("mcpServers", "servers", "mcp_servers", "context_servers")
"""The keys under which a file of another client has its servers."""

RENAMED = {
    "includeTools": "enabledTools",
    "enabled_tools": "enabledTools",
    "excludeTools": "disabledTools",
    "disabled_tools": "disabledTools",
    "environment": "env",
    "http_headers": "headers",
}
"""Keys of other clients that mean the same as a key of ours."""

SECONDS = {"startup_timeout_sec": "connectTimeoutMs", "tool_timeout_sec": "timeoutMs"}

UNUSED = {
    "headersHelper": "the command is not run; write the headers, or a variable, into `headers`",
    "authProviderType": "is not supported; use `auth`",
    "sandbox": "the server is not sandboxed",
    "sandboxEnabled": "the server is not sandboxed",
}
"""Keys of other clients that have an effect there, and none here."""

OAUTH = {
    "clientId": "clientId",
    "CLIENT_ID": "clientId",
    "clientSecret": "clientSecret",
    "CLIENT_SECRET": "clientSecret",
    "callbackPort": "redirectPort",
    "scope": "scopes",
    "scopes": "scopes",
}

MIN_MILLISECONDS = 1_000
"""A `timeout` below this is in seconds: clients do not agree about the unit."""

_BRACED = re.compile(r"(?<!\$)\{(env|file):([^{}]*)\}")
_BARE = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)


@dataclass(slots=True)
class Translation:
    """An entry in our format.

    Attributes:
        entry: The entry.
        places: Where a key of ours is in the original, if it has another name there.
        warnings: What has no effect here.
    """

    entry: JsonObject
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def original(self, base: str, path: str) -> str:
        """Returns the path in the original file for a path in `entry`."""
        for ours, theirs in self.places.items():
            prefix = join(base, ours)
            if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
                return f"{base}.{theirs}{path[len(prefix) :]}"
        return path

    def __post_init__(self) -> None:
        self.entry = {key: value for key, value in self.entry.items() if value is not None}
        chosen = next((key for key in URL_KEYS if key in self.entry), "url")
        if chosen != "url":
            self.places["url"] = chosen
            self.entry["url"] = self.entry[chosen]
        for key in URL_KEYS:
            if key != "url":
                self.entry.pop(key, None)

    def rename(self, theirs: str, ours: str) -> None:
        if theirs in self.entry:
            value = self.entry.pop(theirs)
            if ours not in self.entry:
                self.entry[ours] = value
                self.places[ours] = theirs

    def warn(self, path: str, key: str, text: str) -> None:
        self.warnings.append(ConfigWarning(join(path, key), text))

    def translate_command(self) -> None:
        command = self.entry.get("command")
        if isinstance(command, list):  # opencode
            self.entry["command"], self.entry["args"] = (command[0] if command else ""), command[1:]
            self.places["args"] = "command"
        elif isinstance(command, dict):  # older versions of Zed
            del self.entry["command"]
            for theirs, ours in (("path", "command"), ("args", "args"), ("env", "env")):
                if theirs in command:
                    self.entry[ours] = command[theirs]
                    self.places[ours] = f"command.{theirs}"

    def translate_times(self, section: str) -> None:
        for theirs, ours in SECONDS.items():
            self.rename(theirs, ours)
            value = self.entry.get(ours)
            if self.places.get(ours) == theirs and isinstance(value, int | float):
                self.entry[ours] = value * 1000
        self.rename("startup_timeout_ms", "connectTimeoutMs")
        # opencode means the time to list the tools; the others mean a call.
        ours = "connectTimeoutMs" if section == "mcp" else "timeoutMs"
        self.rename("timeout", ours)
        value = self.entry.get(ours)
        if self.places.get(ours) == "timeout" and isinstance(value, int | float):
            self.entry[ours] = value if value >= MIN_MILLISECONDS else value * 1000

    def translate_login(self, path: str) -> None:
        """Translates `oauth` of Claude Code, Gemini CLI and opencode, and `auth` of Cursor."""
        key = "oauth" if "oauth" in self.entry else "auth"
        login = self.entry.get(key)
        if key == "auth" and not (isinstance(login, dict) and "CLIENT_ID" in login):
            return
        del self.entry[key]
        if login is False or (isinstance(login, dict) and login.get("enabled") is False):
            return
        auth: JsonObject = {"type": "oauth"}
        for theirs, value in login.items() if isinstance(login, dict) else ():
            if theirs in OAUTH:
                auth[OAUTH[theirs]] = value
            elif theirs != "enabled":
                self.warn(
                    join(path, key), theirs, "has no effect; see `auth` for what is supported"
                )
        self.entry["auth"] = auth
        self.places["auth"] = key

    def translate_codex(self, environment: Mapping[str, str]) -> None:
        self.rename("env_http_headers", "variables of headers")
        variables = self.entry.pop("variables of headers", None)
        if isinstance(variables, dict):
            headers = self.entry.get("headers")
            filled: JsonObject = {name: f"${{{value}}}" for name, value in variables.items()}
            self.entry["headers"] = {**(headers if isinstance(headers, dict) else {}), **filled}
        if (token := self.entry.pop("bearer_token_env_var", None)) is not None:
            self.entry["auth"] = {"type": "bearer", "token": f"${{{token}}}"}
            self.places["auth"] = "bearer_token_env_var"
        passed = self.entry.pop("env_vars", None)
        if isinstance(passed, list):
            names = [it.get("name") if isinstance(it, dict) else it for it in passed]
            env = self.entry.get("env")
            inherited: JsonObject = {
                str(name): f"${{{name}}}" for name in names if str(name) in environment
            }
            self.entry["env"] = {**inherited, **(env if isinstance(env, dict) else {})}

    def limit_by_patterns(self, name: str, tools: JsonValue) -> None:
        """Applies `tools` of opencode, such as `{"server_delete*": false}`, to one server."""
        hidden: list[JsonValue] = []
        for pattern, shown in tools.items() if isinstance(tools, dict) else ():
            if shown is not False:
                continue
            if pattern in ("*", f"{name}*"):
                hidden.append("*")
            elif pattern.startswith(f"{name}_"):
                hidden.append(pattern[len(name) + 1 :])
        if hidden:
            listed = self.entry.get("disabledTools")
            self.entry["disabledTools"] = [*(listed if isinstance(listed, list) else []), *hidden]


def sections_of(data: Mapping[str, JsonValue]) -> Iterator[tuple[str, str, JsonValue]]:
    """Yields the path, the key and the value of each section of a client that has servers."""
    for key in SECTIONS:
        if key in data:
            yield key, key, data[key]
    mcp = data.get("mcp")
    if isinstance(mcp, dict) and "servers" not in mcp and "mcpServers" not in data:
        # opencode and Crush. In the settings of Gemini CLI, `mcp` has lists and no entries.
        if any(isinstance(each, dict) for each in mcp.values()):
            yield "mcp", "mcp", mcp


def denied_by(data: Mapping[str, JsonValue], section: str, name: str) -> bool:
    """True if the lists `mcp.allowed` and `mcp.excluded` of Gemini CLI exclude a server."""
    lists = data.get("mcp")
    if section != "mcpServers" or not isinstance(lists, dict):
        return False
    allowed, excluded = lists.get("allowed"), lists.get("excluded")
    return (isinstance(allowed, list) and name not in allowed) or (
        isinstance(excluded, list) and name in excluded
    )


def translate(
    name: str,
    path: str,
    entry: JsonObject,
    data: Mapping[str, JsonValue],
    section: str,
    environment: Mapping[str, str],
) -> Translation:
    """Translates the entry of another client.

    Args:
        name: The name of the server.
        path: The path of the entry.
        entry: The entry.
        data: The whole file.
        section: The key of the section that has the entry.
        environment: The environment variables.
    """
    made = Translation(entry)
    made.translate_command()
    for theirs, ours in RENAMED.items():
        made.rename(theirs, ours)
    if isinstance(tools := made.entry.get("tools"), list):
        made.rename("tools", "enabledTools")
    elif tools is not None:
        made.warn(path, "tools", "has no effect; use `enabledTools` and `disabledTools`")
    for key, text in UNUSED.items():
        if made.entry.pop(key, None):
            made.warn(path, key, text)
    made.translate_times(section)
    made.translate_login(path)
    made.translate_codex(environment)
    if section == "mcp":
        made.limit_by_patterns(name, data.get("tools"))
        made.entry = change_texts(made.entry, _with_variables)
    for key in ("env", "headers"):
        texts = made.entry.get(key)
        if isinstance(texts, dict):
            # `$NAME` as a whole is a variable for Gemini CLI and Crush.
            made.entry[key] = {
                inner: f"${{{found[1]}}}"
                if isinstance(text, str) and (found := _BARE.fullmatch(text))
                else text
                for inner, text in texts.items()
            }
    return made


def _with_variables(text: str) -> str:
    """Writes opencode's `{env:NAME}` as `${NAME:-}`; `{file:…}` becomes an error later."""
    return _BRACED.sub(
        lambda it: f"${{{it[2]}:-}}" if it[1] == "env" else f"${{file:{it[2]}}}", text
    )


# ---- Inputs and variables of VS Code ----


def inputs_of(data: Mapping[str, JsonValue]) -> dict[str, InputField]:
    """Returns the inputs of a file of VS Code, by their ids."""
    mcp = data.get("mcp")
    listed = data.get("inputs") or (mcp.get("inputs") if isinstance(mcp, dict) else None)
    found: dict[str, InputField] = {}
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("type") in ("promptString", "pickString"):
            options = each.get("options")
            values = [
                it.get("value") if isinstance(it, dict) else it
                for it in (options if isinstance(options, list) else [])
            ]
            one = InputField(
                str(each.get("id")),
                str(each.get("description") or ""),
                each.get("password") is True,
                str(each.get("default") or ""),
                tuple(map(str, values)),
            )
            found[one.id] = one
    return found


def predefined(file: Path) -> dict[str, str]:
    """Returns the variables that editors define, for a file that they would read."""
    folder = file.absolute().parent
    workspace = folder.parent if folder.name.startswith(".") else folder
    return {
        "workspaceFolder": str(workspace),
        "workspaceFolderBasename": workspace.name,
        "userHome": os.path.expanduser("~"),
        "pathSeparator": os.sep,
        "/": os.sep,
    }

"""What the model sees: the descriptions and schemas of the two tools `exec` and `wait`.

Equal catalogs give equal text, byte for byte, so that providers can cache the prompt. The text
never contains words of MCP servers or clients, because they are untrusted.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.code_mode.config import CodeModeConfig
from clawmode.exceptions import ConfigurationError
from clawmode.sandbox.source import SHELL, TYPESCRIPT
from clawmode.types import JsonObject, JsonValue

Format: TypeAlias = Literal["openai", "openai-responses", "anthropic", "mcp"]

SHELLS = ("exec", "bash", "shell", "sh", "run_command", "terminal")
"""Common names of tools that run shell commands."""

WAIT_DESCRIPTION = (
    "Continue a program that `exec` or `wait` left with status `waiting`. Takes its `runId`; "
    "answers like `exec`. Output already returned is not repeated."
)

_EXEC = """\
Run a short {languages} program. It is the body of an async function: use `await`, and \
`return` the final value (a trailing expression is not returned). It calls the real tools; \
nothing else is visible to you.
- `await tools.search(query, {{limit}})` finds tools, `await tools.describe(id)` gives a \
tool's input schema, `await tools.call(id, input)` calls it; `tools.name(input)` works where a \
name is unique. `ALL_TOOLS` lists all, without schemas.
- Independent calls go in parallel: `await Promise.all([...])`. Up to {pending} run at once.
- A failed call throws an Error with `code` and `toolId`: catch it if the program can go on.
- `text(value)` and `json(value)` add output; keep it and the value under {output} bytes in \
all, and filter large results in the program.
- You have {seconds} seconds for each `exec` or `wait`. If a call takes longer or a person \
must approve it, the result has status `waiting` and a `runId`: call `wait` with it. `await \
yield_control()` does the same on purpose. A failed result lists in `calls` what was done \
already: do not repeat it blindly.
- No imports, files, network or shell: only tools. Plain JavaScript globals, timers, `URL` and \
`TextEncoder` exist. Time zone UTC."""


_MCP = """\
MCP servers: {servers}. `await API.list("mcp")` lists files of declarations, `await \
API.read("mcp/<server>.d.ts")` shows one; then call `await MCP.<server>.<tool>(input)` with one \
object. `isError: true` in a result is the tool's own failure."""

MAX_SERVERS = 50


def exec_description(
    catalog: Catalog,
    namespaces: NamespaceRuntime,
    mcp: McpNamespace,
    config: CodeModeConfig,
    missing: Sequence[str] = (),
) -> str:
    """Returns the description of `exec`: how to write a program, namespaces, the index of tools."""
    languages = {"javascript": "JavaScript", "typescript": "TypeScript"}
    parts = [
        _EXEC.format(
            languages=" or ".join(languages[name] for name in config.languages),
            pending=config.max_pending_tool_calls,
            output=config.max_output_bytes,
            seconds=f"{config.timeout_ms / 1000:g}",
        )
    ]
    if mcp:
        # The operator chooses the names of servers; names of their tools are untrusted.
        names = mcp.server_names()
        more = f" and {len(names) - MAX_SERVERS} more" if len(names) > MAX_SERVERS else ""
        parts.append(_MCP.format(servers=", ".join(names[:MAX_SERVERS]) + more))
    if connecting := mcp.connecting():
        names = ", ".join(connecting[:MAX_SERVERS])
        parts.append(
            f"MCP servers that are still connecting: {names}. A call waits for its server; "
            "`await MCP.<server>.$api()` waits too and returns the declarations."
        )
    if missing:
        names = ", ".join(missing[:MAX_SERVERS])
        parts.append(f"MCP servers that cannot be reached now: {names}.")
    if prompts := namespaces.prompt_text():
        parts.append("Namespaces:\n" + prompts)
    if index := catalog.index_text(config.index_max_chars):
        parts.append("Tools:\n" + index)
    return "\n\n".join(parts)


def shell_hint(catalog: Catalog) -> str:
    """Returns advice for a model that sent a shell command instead of a program."""
    names = {tool.name: tool.id for tool in catalog.entries if tool.source != "mcp"}
    found = next((names[name] for name in SHELLS if name in names), None)
    if found is None:
        return "This run has no shell: look for a tool with `tools.search`."
    return f"To run a command, write a program that calls `tools.call({found!r}, input)`."


def advice(error: str, catalog: Catalog, config: CodeModeConfig) -> str:
    """Returns advice about an error of the sandbox that depends on the run; empty if none."""
    if error == SHELL:
        return f" {shell_hint(catalog)}"
    if not error.endswith(TYPESCRIPT):
        return ""
    if "typescript" in config.languages:
        return ' Set `language` to "typescript".'
    return " This run takes JavaScript only: leave the types out."


def exec_schema(config: CodeModeConfig) -> JsonObject:
    """Returns the schema of `exec`: flat, because some providers reject unions."""
    languages: list[JsonValue] = list(config.languages)
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The body of an async function."},
            "language": {
                "type": "string",
                "enum": languages,
                "description": f"Default: {config.languages[0]}.",
            },
        },
        "required": ["code"],
        "additionalProperties": False,
    }


WAIT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"runId": {"type": "string", "description": "From the waiting result."}},
    "required": ["runId"],
    "additionalProperties": False,
}


def definition(format: Format, name: str, description: str, schema: JsonObject) -> JsonObject:
    """Returns the definition of a tool in the format of a provider or of MCP."""
    match format:
        case "openai":
            function: JsonObject = {
                "name": name,
                "description": description,
                "parameters": schema,
            }
            return {"type": "function", "function": function}
        case "openai-responses":
            flat: JsonObject = {"type": "function", "name": name, "description": description}
            return flat | {"parameters": schema, "strict": False}
        case "anthropic":
            return {"name": name, "description": description, "input_schema": schema}
        case "mcp":
            return {"name": name, "description": description, "inputSchema": schema}
        case _:
            known = "openai, openai-responses, anthropic, mcp"
            raise ConfigurationError(
                f"there is no format {format!r}; use one of {known}", path="format", expected=known
            )

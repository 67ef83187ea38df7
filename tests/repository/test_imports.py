"""The import order of ARCHITECTURE.md, as data, checked against the source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import clawmode

ROOT = Path(clawmode.__file__).parent

# A folder imports only what stands on the lines above it, nothing of its own line. The modules of
# the first line may import each other.
LAYERS = (
    (
        *("types", "exceptions", "context", "records", "sections", "redaction"),
        *("messages", "addresses", "text", "files", "tasks"),
    ),
    ("sandbox",),
    ("tools",),
    ("catalog",),
    ("code_mode",),
    ("postgres",),  # the library ends here
    ("models", "mcp", "core_tools"),
    ("integrations", "testing"),
    ("config",),
    ("sessions",),
    ("agent",),
    ("messaging", "cron", "plugins"),
    ("rpc",),
    ("app",),
    ("gateway",),
    ("terminal",),
    ("commands",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
LAZY = {("code_mode.code_mode", "mcp.servers"), ("code_mode.code_mode", "mcp.settings")} | {
    ("code_mode.arguments", "config.mcp"),
    ("code_mode.arguments", "mcp.settings"),
    ("code_mode.sync", "mcp.settings"),
}
"""`CodeMode(mcp_servers=…)` loads the MCP client when it is entered with servers."""

MAX_CHAIN = 18

HOMES = {
    "acp": {f"terminal.acp_{name}" for name in ("agent", "questions", "requests", "session")}
    | {"terminal.acp_updates"},
    "agent_framework": {"integrations.agent_framework"},
    "agents": {"integrations.openai_agents"},
    "anthropic": {
        "models.anthropic_sdk",
        "code_mode.surface",
    },  # `surface` for type checkers only
    "claude_agent_sdk": {"integrations.claude_agent"},
    "cronsim": {"cron.schedule"},
    "cryptography": {"code_mode.snapshots"},
    "docstring_parser": {"tools.docstrings"},
    "fastmcp": {"integrations.fastmcp"},
    "fcntl": {"files"},  # not foreign, but all locks are there
    "google": {"integrations.google_adk", "code_mode.surface"},
    "httpx2": {"core_tools.web", "mcp.auth", "mcp.http", "mcp.login", "mcp.supervisor"}
    | {"mcp.identity"}
    | {"messaging.webhook_delivery", "models.wire"},
    "jsonschema_rs": {"tools.validation", "tools.input_problems"},
    "jwt": {"mcp.identity", "mcp.login"},
    "mcp": {f"mcp.{name}" for name in ("auth", "connection", "face_tasks", "http", "http_face")}
    | {f"mcp.{name}" for name in ("login", "requests", "sdk", "server", "stdio", "stdio_wire")}
    | {"integrations.claude_agent"}
    | {f"mcp.{name}" for name in ("server_tasks", "supervisor", "tool_call", "wire")},
    "langchain": {"integrations.langchain", "integrations.langgraph_calls"},
    "langchain_core": {"integrations.langchain", "integrations.langgraph_calls"},
    "langgraph": {"integrations.langchain", "integrations.langgraph_calls"},
    "msgpack": {"sandbox.frames"},
    "numpy": {"catalog.vectors"},
    "openai": {"models.openai_sdk", "code_mode.surface"} | {"integrations.openai_agents"},
    "opentelemetry": {"code_mode.spans"},
    "platformdirs": {"app.mcp_clients", "app.setup", "config.file", "sandbox.artifacts"},
    "prompt_toolkit": {"terminal.chat_screen", "terminal.chat_prompt"},
    "psycopg": {"postgres.connection"},
    "pydantic": {
        "records",
        "sections",
        "messages",
        "code_mode.config",
        "config.mcp_entry",
        "config.operations",
        "mcp.connection",
    }
    | {"mcp.face_tasks", "mcp.server_tasks", "tools.function", "tools.signature"}
    | {"core_tools.exec_approvals", "cron.job", "plugins.manifest", "rpc.tokens"}
    | {"rpc.protocol", "integrations.langchain"},
    "pydantic_ai": {f"models.{name}" for name in ("anthropic_sdk", "openai_sdk")}
    | {"models.direct", "models.conversion", "models.failures"}
    | {"integrations.pydantic_ai"},
    "pydantic_core": {"records", "code_mode.config", "tools.function"}
    | {"integrations.session", "integrations.langgraph_calls"},
    "pyjson5": {"config.json5"},
    "rich": {"app.console", "terminal.call_tree"},
    "standardwebhooks": {"messaging.signing"},
    "starlette": {
        "gateway.http_api",
        "gateway.page_server",
        "gateway.server",
        "messaging.webhook",
        "messaging.webhook_request",
        "mcp.http_face",
    },
    "typer": {f"commands.{path.stem}" for path in (ROOT / "commands").glob("[a-z]*.py")},
    "typing_extensions": {"tools.annotations"},
    "uvicorn": {"gateway.server", "rpc.http_server"},
    "wasmtime": {"sandbox.wasm", "sandbox.machine", "sandbox.image", "sandbox.vm", "sandbox.guard"}
    | {"sandbox.worker", "sandbox.typescript", "sandbox.swc", "sandbox.deadline"},
    "websockets": {"rpc.link", "gateway.server"},
    "yaml": {"agent.skills"},
}
"""The modules that may import a foreign library. Everything else reaches it through these."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"}


def imports(node: ast.AST, *, at_start: bool) -> Iterator[str]:
    """Yields what a module imports; with `at_start`, only what is loaded together with it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module, "imports are absolute"
            for alias in child.names:
                name = f"{child.module}.{alias.name}"
                yield name if name.removeprefix("clawmode.") in FILES else child.module
        elif at_start and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_start and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        else:
            yield from imports(child, at_start=at_start)


def graph(*, at_start: bool) -> dict[str, set[str]]:
    """Returns for each module the modules of ours that it imports."""
    return {
        module: {
            name.removeprefix("clawmode.")
            for name in imports(ast.parse(path.read_text("utf-8")), at_start=at_start)
            if name.removeprefix("clawmode.") in FILES
        }
        for module, path in FILES.items()
    }


def folder(module: str) -> str:
    return module.split(".")[0]


def test_every_folder_has_its_layer() -> None:
    assert {folder(module) for module in FILES} - LEVELS.keys() == set()


def test_a_folder_imports_only_folders_above_it() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, names in graph(at_start=False).items()
        for imported in names
        if folder(module) != folder(imported)
        and LEVELS[folder(imported)] >= LEVELS[folder(module)] > 0
        and (module, imported) not in LAZY
    ]
    assert wrong == []


def test_the_lazy_exceptions_are_lazy_and_still_needed() -> None:
    loaded, named = graph(at_start=True), graph(at_start=False)
    assert {edge for edge in LAZY if edge[1] in loaded[edge[0]]} == set()
    assert {edge for edge in LAZY if edge[1] not in named[edge[0]]} == set()


def test_the_worker_loads_the_sandbox_types_and_exceptions_only() -> None:
    loaded = graph(at_start=True)
    reached: set[str] = set()
    waiting = ["sandbox.worker"]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting += loaded[module] - reached
    assert {folder(module) for module in reached} == {"sandbox", "types", "exceptions"}


def test_a_foreign_library_has_one_home() -> None:
    users: dict[str, set[str]] = {library: set() for library in HOMES}
    for module, path in FILES.items():
        for name in imports(ast.parse(path.read_text("utf-8")), at_start=False):
            users.get(name.split(".")[0], set()).add(module)
    assert users == HOMES


def test_only_one_module_uses_the_private_binding_of_wasmtime() -> None:
    private = re.compile(r"\bwasmtime\._|from wasmtime import _")
    users = {module for module, path in FILES.items() if private.search(path.read_text("utf-8"))}
    assert users == {"sandbox.wasm"}


def test_no_import_chain_is_a_cycle_or_longer_than_it_should_be() -> None:
    loaded = graph(at_start=True)

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return max(((module, *chain(name)) for name in loaded[module]), key=len, default=(module,))

    longest = max((chain(module) for module in FILES), key=len)  # a cycle is a RecursionError
    assert len(longest) <= MAX_CHAIN, " → ".join(longest)

"""Who may import what: the rule of ARCHITECTURE.md, read from the source."""

import ast
from pathlib import Path

import clawmode

ROOT = Path(clawmode.__file__).parent

FACES = {
    "__main__",
    "agent",
    "channels",
    "chat",
    "cli",
    "command_setup",
    "commands",
    "config_check",
    "core_tools",
    "cron",
    "doctor",
    "foreground",
    "forms",
    "gateway",
    "host",
    "interrupts",
    "listings",
    "mcp",
    "models",
    "plugins",
    "questions",
    "terminal",
    "testing",
    "tool_loading",
}
LAZY = {("code_mode.py", "mcp")}
"""`CodeMode(mcp_servers=…)` reaches the client, when it is entered with servers."""

ONLY = {
    "sandbox": {"sandbox", "types", "exceptions", "files", "tasks"},
    "models": {"models", "types", "exceptions", "tools", "messages", "redaction"},
}
ONLY_HERE = {
    "wasmtime": {
        "sandbox/wasm.py",
        "sandbox/machine.py",
        "sandbox/vm.py",
        "sandbox/guard.py",
        "sandbox/worker.py",
        "sandbox/typescript.py",
        "sandbox/swc.py",
    },
    "msgpack": {"sandbox/protocol.py"},
    "pyjson5": {"json5.py"},
    "pydantic": {"tool_function.py", "mcp/session.py"},
    "pydantic_core": {"tool_function.py"},
    "typing_extensions": {"annotations.py"},
    "jsonschema_rs": {"validation.py", "input_problems.py"},
    "cryptography": {"snapshots.py"},
    "numpy": {"vectors.py"},
    "tokenizers": {"vectors.py"},
    "opentelemetry": {"spans.py"},
    "rich": {"terminal.py"},
    "prompt_toolkit": {"chat/screen.py", "chat/terminal.py"},
    "websockets": {"gateway/link.py", "gateway/server.py"},
    "typer": {
        "cli.py",
        *(f"commands/{path.name}" for path in (ROOT / "commands").glob("[a-z]*.py")),
    },
    "pydantic_ai": {"models/direct.py", "models/conversion.py", "models/failures.py"},
    "openai": {"models/direct.py", "code_mode.py"},  # the latter for type checkers only
    "anthropic": {"models/direct.py", "code_mode.py"},
    "httpx2": {
        "channels/delivery.py",
        "core_tools/web.py",
        "mcp/auth.py",
        "mcp/client.py",
        "mcp/http.py",
        "models/wire.py",
    },
}
WEB = {"channels/webhook.py", "channels/webhook_request.py", "gateway/server.py"}
PRIVATE_BINDING = {"sandbox/wasm.py"}


FOLDERS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


SOURCES = {str(path.relative_to(ROOT)): imports(path) for path in ROOT.rglob("*.py")}


def ours(names: set[str]) -> set[str]:
    modules = {name.split(".")[1] for name in names if name.startswith("clawmode.")}
    return modules & ({path.stem for path in ROOT.glob("*.py")} | FOLDERS)


def area(source: str) -> str:
    return source.split("/")[0].removesuffix(".py")


def test_nothing_imports_a_face_but_a_face() -> None:
    wrong = {
        source: found
        for source, names in SOURCES.items()
        if area(source) not in FACES
        and source != "__init__.py"  # imports every public name, for type checkers alone
        and (found := {face for face in ours(names) & FACES if (source, face) not in LAZY})
    }
    assert wrong == {}


def test_the_sandbox_imports_only_the_lowest_layer() -> None:
    wrong = {
        source: ours(names) - ONLY[area(source)]
        for source, names in SOURCES.items()
        if area(source) in ONLY and ours(names) - ONLY[area(source)]
    }
    assert wrong == {}


def test_a_foreign_library_has_one_home() -> None:
    users = {
        library: {
            source
            for source, names in SOURCES.items()
            if any(name.split(".")[0] == library for name in names)
        }
        for library in ONLY_HERE
    }
    assert users == ONLY_HERE


def users_of(*libraries: str) -> set[str]:
    """Who imports any of these, outside of `mcp/`."""
    return {
        source
        for source, names in SOURCES.items()
        if not source.startswith("mcp/") and any(name.split(".")[0] in libraries for name in names)
    }


def test_the_libraries_of_mcp_stay_in_its_modules() -> None:
    assert users_of("mcp", "mcp_types") == set()


def test_only_faces_that_are_posted_to_know_the_web_framework() -> None:
    assert users_of("starlette", "uvicorn") == WEB


def test_only_one_module_uses_the_private_binding_of_wasmtime() -> None:
    users = {
        source
        for source, names in SOURCES.items()
        if any(name.startswith("wasmtime._") for name in names)
    }
    assert users == PRIVATE_BINDING


def test_there_is_no_import_cycle() -> None:
    graph = {
        source.removesuffix(".py").replace("/", "."): {
            name.removeprefix("clawmode.") for name in names if name.startswith("clawmode.")
        }
        for source, names in SOURCES.items()
        if not source.endswith("__init__.py")
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module in done or module not in graph:
            return
        for imported in sorted(graph[module]):
            visit(imported, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())
    assert len(done) == len(graph)

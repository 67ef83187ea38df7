"""The names that users may rely on, and what it costs to import them."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import clawmode

ROOT = Path(__file__).parents[2]
PACKAGE = Path(clawmode.__file__).parent

LIBRARY = """
    AbortUnconfirmed AfterToolCall ApprovalNeeded Approvals BeforeToolCall CallEvent ClawmodeError
    ClawmodeWarning
    CodeMode CodeModeConfig CodeModeResult ConfigurationError CoreTools Decision DuplicateTool
    ErrorCode FileLimits FileSettings Hooks InputQuestion InputRequest InvalidTool JsonObject
    JsonValue McpServers MemoryStore NamespaceContext NamespaceRegistration NamespaceRegistry
    NotOpen Policy Pool PostgresStore ProgramFailed ProgramWaiting Question QuestionGroup
    RequireApproval RunContext ShellSettings SqliteStore SyncCodeMode Tool ToolCallDecision
    ToolContext ToolResult UnexpectedValue UnknownHook UnknownTool WebSettings compact
    make_core_tools namespace_tool read_servers tool
""".split()

AGENT = """
    Agent AgentEnd AgentEvent AgentRequest AgentRuntime ClaimedReply CompactionEvent ConfigResolver
    Configuration EventStream GatewayEvent Install InstallDecision Jobs MessageEvent Model
    ModelError ModelOverride ModelPool ModelResolve PluginApi Plugins PromptAdditions PromptBuild
    ResultEvent RunFailed RunResult Scheduler SendDecision SessionBusy SessionEvent SessionStore
    ToolMessage configured_jobs read_configuration read_transcript render_transcript
""".split()

GATEWAY = "EventsLost GatewayClient GatewayUnreachable RpcError TurnResult".split()

ADAPTERS = "agent_framework claude_agent fastmcp google_adk langchain openai_agents pydantic_ai"
MAY_BE_IMPORTED = {"clawmode", "clawmode.testing", "clawmode.integrations"} | {
    f"clawmode.integrations.{name}" for name in ADAPTERS.split()
}
"""Modules that pages and examples may import."""

HEAVY = {
    "the web server": {"starlette", "uvicorn", "websockets"},
    "the MCP SDK": {"mcp", "mcp_types"},
    "the SDKs of providers": {"anthropic", "openai", "pydantic_ai", "tiktoken"},
    "the command line": {"typer", "rich", "prompt_toolkit"},
    "the extra `search`": {"numpy"},
    "the extra `postgres`": {"psycopg"},
}


def run(program: str) -> str:
    """Runs a program in a fresh interpreter and returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(program: str) -> set[str]:
    return set(run(f"{program}\nimport sys; print(*sys.modules)").split())


def test_the_public_names_are_these() -> None:
    assert [*clawmode.LIBRARY] == LIBRARY
    assert [*clawmode.AGENT] == AGENT
    assert [*clawmode.GATEWAY] == GATEWAY
    assert sorted([*LIBRARY, *AGENT, *GATEWAY, "__version__"]) == clawmode.__all__
    assert dir(clawmode) == clawmode.__all__


def test_type_checkers_and_the_interpreter_find_a_name_in_the_same_module() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    shown = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {**clawmode.LIBRARY, **clawmode.AGENT, **clawmode.GATEWAY}
    parts = {name: home.partition(":") for name, home in homes.items()}
    assert shown == {
        name: (f"clawmode.{module}", inner or name) for name, (module, _, inner) in parts.items()
    }


def test_every_public_name_can_be_imported() -> None:
    for name in clawmode.__all__:
        assert getattr(clawmode, name) is not None


def test_no_public_name_is_that_of_a_module() -> None:
    """The module would replace the name as soon as any module of the folder is imported."""
    modules = {path.stem for path in (*PACKAGE.glob("*.py"), *PACKAGE.glob("*/"))}
    assert modules & {*clawmode.__all__} == set()


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = clawmode.Nonsense


# ---- What an import costs ----


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import clawmode")
    assert {name for name in loaded if name.startswith("clawmode")} == {"clawmode"}
    assert not {"anyio", "wasmtime", "msgpack", "typer"} & loaded


@pytest.mark.covers("PY-2")
@pytest.mark.parametrize("names", ["CodeMode, tool", "Agent, tool", "AgentRuntime, AgentRequest"])
def test_a_name_loads_no_web_server_no_mcp_and_no_provider_sdk(names: str) -> None:
    loaded = loaded_by(f"from clawmode import {names}")
    assert {what: found for what, those in HEAVY.items() if (found := those & loaded)} == {}


@pytest.mark.covers("PY-2")
def test_every_public_name_can_be_imported_without_the_extras() -> None:
    """A missing extra is reported when a run needs it, by an error that names the extra."""
    program = """
        import sys
        for library in ("anthropic", "openai", "pydantic_ai", "tiktoken", "numpy"):
            sys.modules[library] = None  # importing it raises
        import clawmode, clawmode.testing
        for name in clawmode.__all__:
            getattr(clawmode, name)
    """
    assert run(program) == ""


# ---- What pages and examples import ----


def programs() -> Iterator[tuple[str, str]]:
    """Yields every Python program that readers copy, with its place."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        text = path.read_text("utf-8")
        for found in re.finditer(r"^( *)```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 1
            yield f"{path.relative_to(ROOT)}:{line}", textwrap.dedent(found[2])
    for path in ROOT.glob("examples/**/*.py"):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def modules_of(program: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.covers("PY-1")
def test_pages_and_examples_import_public_names_only() -> None:
    found = {place: set(modules_of(program)) for place, program in programs()}
    assert sum("clawmode" in modules for modules in found.values()) > 20
    deeper = {
        place: wrong
        for place, modules in found.items()
        if (wrong := {it for it in modules if it.startswith("clawmode.")} - MAY_BE_IMPORTED)
    }
    assert deeper == {}

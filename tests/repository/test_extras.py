"""What `pip install clawmode` brings, what each extra adds, and what is said without it."""

import re
import subprocess
import sys
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import clawmode
from clawmode.exceptions import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FRAMEWORKS = {"agent-framework", "claude-agent", "fastmcp", "google-adk", "langchain"} | {
    "openai-agents",
    "pydantic-ai",
}
MAX_DEPENDENCIES = 9
NEED_AN_EXTRA = {
    "GatewayClient": "gateway",
    "Jobs": "agent",
    "McpServers": "mcp",
    "PostgresStore": "postgres",
    "Scheduler": "agent",
    "TurnResult": "gateway",
    "configured_jobs": "agent",
}
"""Public names that cannot even be imported without an extra."""


def run(
    program: str, *, without: "set[str] | frozenset[str]"
) -> "subprocess.CompletedProcess[str]":
    """Runs a program in an interpreter in which some libraries are not installed."""
    block = f"import sys\nfor library in {sorted(without)}:\n    sys.modules[library] = None\n"
    return subprocess.run(
        [sys.executable, "-c", block + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def command(arguments: str, *, without: "set[str] | frozenset[str]") -> str:
    """Returns the one line that a command says before it fails."""
    program = f"""
        import sys
        from clawmode.__main__ import main
        sys.argv = ["clawmode", *{arguments.split()}]
        main()
    """
    done = run(program, without=without)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


EVERYTHING = frozenset[str]().union(*EXTRAS.values())


@pytest.mark.covers("PY-6")
def test_the_core_has_few_dependencies_and_every_part_has_its_extra() -> None:
    assert len(PROJECT["dependencies"]) <= MAX_DEPENDENCIES
    extras = PROJECT["optional-dependencies"].keys()
    assert extras == {*EXTRAS, *FRAMEWORKS, "all"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"clawmode[{','.join(sorted(EXTRAS))}]"


@pytest.mark.covers("PY-7")
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_knows_what_an_extra_installs(extra: str) -> None:
    """The table names the libraries, which are imported by other names than they are installed."""
    distributions = metadata.packages_distributions()
    names = {name for library in EXTRAS[extra] for name in distributions[library]}
    known = {re.sub(r"[-_.]+", "-", name.lower()) for name in names}
    for requirement in PROJECT["optional-dependencies"][extra]:
        found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
        assert found is not None
        if found[1] == "clawmode":
            assert all(EXTRAS[other] <= EXTRAS[extra] for other in found[2].split(","))
        else:
            assert found[1] in known


@pytest.mark.covers("PY-6")
def test_code_mode_runs_without_any_extra() -> None:
    program = '''
        import asyncio
        from clawmode import CodeMode

        def add(a: int, b: int) -> int:
            """Add two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return a + b

        async def main():
            async with CodeMode(tools=[add]) as code_mode:
                code_mode.definitions()
                result = await code_mode.exec("return await tools.add({a: 1, b: 2})")
                typed = await code_mode.exec("const n: number = 4; return n", "typescript")
                print(result.unwrap(), typed.unwrap())

        asyncio.run(main())
    '''
    done = run(program, without=EVERYTHING)
    assert done.stdout == "3 4\n", done.stderr


@pytest.mark.covers("PY-2", "PY-7")
def test_a_public_name_can_be_imported_or_names_its_extra() -> None:
    program = """
        import clawmode, clawmode.testing
        for name in clawmode.__all__:
            try:
                getattr(clawmode, name)
            except ImportError as error:
                print(name, error.extra, error)
    """
    done = run(program, without=EVERYTHING)
    assert done.stderr == ""
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {name: text.split(" ")[0] for name, text in said.items()} == NEED_AN_EXTRA
    assert {*NEED_AN_EXTRA} <= {*clawmode.__all__}
    for name, text in said.items():
        assert text.endswith(f'is not installed: pip install "clawmode[{NEED_AN_EXTRA[name]}]"')


@pytest.mark.covers("PY-7")
def test_what_needs_an_extra_raises_an_import_error_that_names_it() -> None:
    statements = {
        'clawmode.CodeMode(mcp_servers={"a": {"command": "b"}})': "mcp",
        "clawmode.make_core_tools(pathlib.Path())": "agent",
        "from clawmode import McpServers": "mcp",
    }
    program = f"""
        import pathlib, clawmode
        for statement in {[*statements]}:
            try:
                exec(statement)
            except ImportError as error:
                print(error)
    """
    done = run(program, without=EVERYTHING)
    said = done.stdout.splitlines()
    assert len(said) == len(statements), done.stderr
    for line, extra in zip(said, statements.values(), strict=True):
        assert line.endswith(f'is not installed: pip install "clawmode[{extra}]"')


@pytest.mark.covers("PY-7")
@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        ("--help", EVERYTHING, "cli"),
        ("mcp", EVERYTHING - EXTRAS["cli"], "mcp"),
        ("agent -m hello --model openai/gpt", EVERYTHING - EXTRAS["cli"], "agent"),
        ("gateway", EVERYTHING - EXTRAS["cli"], "gateway"),
        ("acp", EVERYTHING - EXTRAS["cli"], "acp"),
        ("acp", frozenset({"acp"}), "acp"),
    ],
)
def test_a_command_without_its_extra_says_so_in_one_line(
    arguments: str, missing: frozenset[str], extra: str
) -> None:
    line = command(arguments, without=missing)
    assert line.startswith("clawmode: ")
    assert line.endswith(f'is not installed: pip install "clawmode[{extra}]"')


def test_a_library_that_no_extra_has_is_reported_as_it_is() -> None:
    done = run("import clawmode; clawmode.CodeMode", without={"anyio"})
    assert "ModuleNotFoundError" in done.stderr


def test_a_library_that_lacks_a_module_is_not_called_missing() -> None:
    """Another version of the library is installed than the extra would install."""
    program = """
        import clawmode, websockets.asyncio
        clawmode.GatewayClient
    """
    done = run(program, without={"websockets.asyncio.client"})
    assert "websockets.asyncio" in done.stderr
    assert "is not installed" not in done.stderr

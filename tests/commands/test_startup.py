"""Commands start quickly: each imports only what it needs.

A list of imports is steadier than a clock. If a test here fails, either import the library where it
is used, or say in the list why every start of the command has to pay for it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clawmode.models.providers import Api

HELP = {"clawmode", "typer", "annotated_doc", "shellingham"}  # the last two for typer
CELL = HELP | {
    "annotated_types",  # pydantic
    "anyio",
    "backports",  # zstd
    "jsonschema_rs",
    "msgpack",
    "platformdirs",
    "pydantic",
    "pydantic_core",
    "pyjson5",
    "sniffio",  # anyio
    "typing_extensions",
    "typing_inspection",
}
SLOW = {"tomllib", "cryptography", "mcp", "httpx2", "rich", "numpy", "openai", "anthropic"}
"""Modules that take long to import, and that most programs do not need."""

PROGRAM = """
import json, sys
before = set(sys.modules)
from clawmode.__main__ import main
sys.argv = ["clawmode", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as error:
    status = error.code
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([status, sorted(tops)]), file=sys.stderr)
"""


def loaded(folder: Path, *arguments: str) -> set[str]:
    """Runs a command, and returns the packages that it has imported, without the small ones."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        cwd=folder,
        env={"CLAWMODE_STATE": str(folder / "state"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    status, names = json.loads(done.stderr.splitlines()[-1])
    assert not status, done.stderr
    own = {it for it in names if it not in sys.stdlib_module_names or it in SLOW}
    return {it for it in own if not it.startswith("_")} - {"sitecustomize", "cython_runtime"}


@pytest.mark.covers("P-20")
def test_the_help_imports_only_the_parser_of_the_command_line(tmp_path: Path) -> None:
    assert loaded(tmp_path, "--help") <= HELP
    assert loaded(tmp_path, "run", "--help") <= CELL


@pytest.mark.covers("P-20")
def test_a_program_imports_neither_models_nor_servers_nor_what_only_parking_needs(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.js").write_text("return 1 + 1", encoding="utf-8")

    assert loaded(tmp_path, "run", "one.js") <= CELL


@pytest.mark.parametrize("command", ["run", "wait", "agent", "config"])
def test_a_command_imports_no_other_command(tmp_path: Path, command: str) -> None:
    program = f"""
import sys
sys.argv = ["clawmode", {command!r}, "--help"]
from clawmode.commands.cli import COMMANDS, GROUPS, main
try:
    main()
except SystemExit:
    pass
homes = {{home.partition(":")[0] for home in (COMMANDS | GROUPS).values()}}
print([home for home in sorted(homes) if f"clawmode.commands.{{home}}" in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    home = {"run": "cells", "wait": "cells"}.get(command, command)
    assert done.stdout.splitlines()[-1] == str([home])


@pytest.mark.covers("P-20")
@pytest.mark.parametrize(
    ("api", "missing"),
    [
        ("anthropic-messages", "openai"),
        ("openai-completions", "anthropic"),
        ("openai-responses", "anthropic"),
    ],
)
def test_a_model_imports_only_the_sdk_of_its_api(api: Api, missing: str) -> None:
    program = f"""
import gc, sys
from clawmode.models.providers import ProviderSettings, make_model
assert not {{"pydantic_ai", "openai", "anthropic", "httpx2"}} & set(sys.modules)
make_model(ProviderSettings(id="x", api={api!r}, base_url="http://127.0.0.1:9/v1"), "m")
assert gc.isenabled()
print(*(sdk for sdk in ("anthropic", "openai") if sdk not in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == missing

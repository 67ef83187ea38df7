"""The names that users may rely on."""

import subprocess
import sys

import pytest

import clawmode


def test_the_public_names_are_these() -> None:
    assert clawmode.__all__ == [
        "AfterToolCall",
        "Approvals",
        "BeforeToolCall",
        "CallEvent",
        "ClawmodeError",
        "ClawmodeWarning",
        "CodeMode",
        "CodeModeConfig",
        "CodeModeResult",
        "ConfigurationError",
        "Decision",
        "ErrorCode",
        "Hooks",
        "InputQuestion",
        "InputRequest",
        "MemoryStore",
        "Policy",
        "Pool",
        "ProgramFailed",
        "ProgramWaiting",
        "Question",
        "RequireApproval",
        "RunContext",
        "SqliteStore",
        "Tool",
        "ToolCallDecision",
        "ToolContext",
        "ToolResult",
        "UnexpectedValue",
        "__version__",
        "compact",
        "tool",
    ]


def test_every_public_name_can_be_had() -> None:
    for name in clawmode.__all__:
        assert getattr(clawmode, name) is not None


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = clawmode.Nonsense


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, clawmode; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in loaded if name.startswith("clawmode")} == {"clawmode"}
    assert not {"anyio", "wasmtime", "msgpack", "typer"} & set(loaded)

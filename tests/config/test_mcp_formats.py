"""The files of other clients: their servers, their limits, their inputs and their variables."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.command_driver import Seat
from tests.support.forking import Zygote
from tests.support.fuzzing import examples
from tests.support.mcp_driver import connected, listed, raw, view_of

from clawmode.config.mcp import McpConfig, load, read
from clawmode.config.mcp_values import InputField
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.settings import Bearer, OAuth, ServerSettings

ENVIRONMENT = {"TOKEN": "s3cr3t-token", "OTHER": "0ther-value"}


def loaded(folder: Path, text: Any, name: str = "mcp.json", **more: Any) -> McpConfig:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")
    return load(path, ENVIRONMENT, **more)


def one(folder: Path, text: Any, name: str = "mcp.json") -> ServerSettings:
    found = loaded(folder, text, name)
    (server,) = found.unwrap()
    assert found.warnings == []
    return server


CODEX = """
model = "gpt-6"  # a comment

[mcp_servers.docs]
command = "npx"
args = ["-y", "docs"]
env_vars = ["OTHER", "UNSET"]
startup_timeout_sec = 12.5
tool_timeout_sec = 45
enabled_tools = ["search", "read"]
disabled_tools = ["read"]

[mcp_servers.docs.env]
MODE = "fast"

[mcp_servers."my hub"]
url = "https://hub.example/mcp"
bearer_token_env_var = "TOKEN"
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Other" = "OTHER" }

[mcp_servers.off]
command = "x"
enabled = false
"""


@pytest.mark.covers("M-11")
def test_codex_is_read_from_toml(tmp_path: Path) -> None:
    docs, hub, off = loaded(tmp_path, CODEX, "config.toml").unwrap()
    assert (docs.command, docs.args) == ("npx", ("-y", "docs"))
    assert docs.env == {"OTHER": "0ther-value", "MODE": "fast"}
    assert (docs.connect_timeout, docs.timeout) == (12.5, 45.0)
    assert (docs.enabled_tools, docs.disabled_tools) == (("search", "read"), ("read",))
    assert hub.auth == Bearer(token="s3cr3t-token")
    assert hub.headers == {"X-Region": "eu", "X-Other": "0ther-value"}
    assert not off.enabled


def test_mistakes_in_toml_have_line_and_column(tmp_path: Path) -> None:
    text = '[mcp_servers.a]\ncommand = "x"\n  args = "s3cr3t"\n\n[mcp_servers.a.env]\nK = 7\n'
    found = loaded(tmp_path, text, "config.toml")
    assert [(error.path, error.line, error.column) for error in found.errors] == [
        ("mcp_servers.a.args", 3, 3),
        ("mcp_servers.a.env.K", 6, 1),
    ]
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, 'a = "s3cr3t\n', "config.toml")
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.line == 1


@pytest.mark.covers("M-11")
def test_gemini_names_tools_to_include_and_to_exclude(tmp_path: Path) -> None:
    entry = {
        "httpUrl": "https://x.example/mcp",
        "url": "https://x.example/sse",
        "headers": {"Authorization": "$TOKEN", "X": "costs $5"},
        "includeTools": ["a", "b"],
        "excludeTools": ["b"],
        "timeout": 30_000,
        "trust": True,
    }
    server = one(tmp_path, {"mcpServers": {"g": entry}, "theme": "dark"})
    assert (server.transport, server.url) == ("streamable-http", "https://x.example/mcp")
    assert server.headers == {"Authorization": "s3cr3t-token", "X": "costs $5"}
    assert (server.enabled_tools, server.disabled_tools) == (("a", "b"), ("b",))
    assert (server.timeout, server.trust_annotations) == (30.0, False)


@pytest.mark.covers("M-11")
@pytest.mark.parametrize(
    ("lists", "kept"),
    [
        ({"allowed": ["a"]}, ["a"]),
        ({"excluded": ["a"]}, ["b"]),
        ({"serverCommand": "x"}, ["a", "b"]),
    ],
)
def test_geminis_lists_of_servers_hold(tmp_path: Path, lists: Any, kept: list[str]) -> None:
    entries = {"a": {"command": "x"}, "b": {"command": "y"}}
    found = loaded(tmp_path, {"mcp": lists, "mcpServers": entries})
    assert [server.name for server in found.unwrap()] == kept
    assert len(found.warnings) == 2 - len(kept)


@pytest.mark.covers("M-11")
@pytest.mark.parametrize(("tools", "enabled"), [(["*"], ("*",)), (["a"], ("a",)), ([], ())])
def test_copilot_lists_its_tools(tmp_path: Path, tools: Any, enabled: Any) -> None:
    entry = {"type": "local", "command": "x", "tools": tools}
    assert one(tmp_path, {"mcpServers": {"c": entry}}).enabled_tools == enabled


@pytest.mark.covers("M-12")
def test_zed_and_its_older_form_are_read(tmp_path: Path) -> None:
    servers = loaded(
        tmp_path,
        """{
            // settings of an editor
            "theme": "One Dark",
            "context_servers": {
                "new": {"source": "custom", "command": "npx", "args": ["-y", "x"], "env": {}},
                "old": {"command": {"path": "uvx", "args": ["y"], "env": {"A": "1"}}},
                "far": {"url": "https://x.example/mcp", "headers": {"X": "1"}},
            },
        }""",
        "settings.json",
    ).unwrap()
    assert [server.command for server in servers] == ["npx", "uvx", ""]
    assert (servers[1].args, servers[1].env) == (("y",), {"A": "1"})
    assert servers[2].url == "https://x.example/mcp"


@pytest.mark.covers("M-12")
def test_opencode_is_read_with_its_limits(tmp_path: Path) -> None:
    servers = loaded(
        tmp_path,
        {
            "mcp": {
                "local": {
                    "type": "local",
                    "command": ["bun", "x", "{env:OTHER}"],
                    "environment": {"KEY": "{env:TOKEN}", "NONE": "{env:UNSET}"},
                    "timeout": 5000,
                },
                "far": {
                    "type": "remote",
                    "url": "https://x.example/mcp",
                    "oauth": {"clientId": "me", "scope": "read"},
                    "enabled": True,
                },
                "off": {"type": "local", "command": ["x"], "enabled": False},
            },
            "tools": {"local_delete*": False, "far*": False, "local_keep": True},
        },
        "opencode.json",
    ).unwrap()
    local, far, off = servers
    assert (local.command, local.args) == ("bun", ("x", "0ther-value"))
    assert local.env == {"KEY": "s3cr3t-token", "NONE": ""}
    assert (local.connect_timeout, local.disabled_tools) == (5.0, ("delete*",))
    assert far.auth == OAuth(client_id="me", scopes=("read",))
    assert far.disabled_tools == ("*",)
    assert not off.enabled


def test_crush_and_cline_are_read(tmp_path: Path) -> None:
    entry = {"type": "http", "url": "https://x.example", "headers": {"A": "$TOKEN"}, "timeout": 120}
    crush = one(tmp_path, {"mcp": {"c": {**entry, "disabled_tools": ["x"]}}})
    assert (crush.headers, crush.disabled_tools) == ({"A": "s3cr3t-token"}, ("x",))
    cline = one(tmp_path, {"mcpServers": {"c": {"command": "x", "timeout": 60, "autoApprove": []}}})
    assert cline.timeout == 60.0


def test_cursor_and_claude_code_log_in_as_they_say(tmp_path: Path) -> None:
    entry: Any = {"url": "https://x.example/mcp"}
    auth = {"CLIENT_ID": "me", "CLIENT_SECRET": "${env:TOKEN}", "scopes": ["read"]}
    cursor = one(tmp_path, {"mcpServers": {"c": {**entry, "auth": auth}}})
    assert cursor.auth == OAuth(client_id="me", client_secret="s3cr3t-token", scopes=("read",))
    oauth = {"clientId": "me", "callbackPort": 8080}
    claude = one(tmp_path, {"mcpServers": {"c": {**entry, "oauth": oauth}}})
    assert claude.auth == OAuth(client_id="me", redirect_port=8080)
    assert one(tmp_path, {"mcpServers": {"c": {**entry, "oauth": False}}}).auth is None


@pytest.mark.covers("M-11")
@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"headersHelper": "/opt/token"}, "headersHelper"),
        ({"oauth": {"authServerMetadataUrl": "https://x"}}, "oauth.authServerMetadataUrl"),
        ({"tools": {"a": {"approval_mode": "approve"}}}, "tools"),
        ({"authProviderType": "google_credentials"}, "authProviderType"),
    ],
)
def test_what_another_client_would_do_and_we_do_not_is_a_warning(
    tmp_path: Path, entry: Any, place: str
) -> None:
    found = loaded(tmp_path, {"mcpServers": {"c": {"url": "https://x.example", **entry}}})
    (warning,) = found.warnings
    assert warning.path.endswith(f"mcpServers.c.{place}")
    assert found.unwrap()


def test_an_error_names_the_key_that_the_file_has(tmp_path: Path) -> None:
    entries = {
        "a": {"command": "x", "includeTools": "all"},
        "b": {"httpUrl": "no address"},
        "c": {"type": "local", "command": ["x", 7]},
        "d": {"command": {"path": "x", "env": {"A": 1}}},
        "e": {"url": "https://x.example", "oauth": {"callbackPort": "s3cr3t"}},
    }
    found = loaded(tmp_path, {"mcpServers": entries})
    assert [error.path for error in found.errors] == [
        "mcpServers.a.includeTools",
        "mcpServers.b.httpUrl",
        "mcpServers.c.command[0]",
        "mcpServers.d.command.env.A",
        "mcpServers.e.oauth.redirectPort",
    ]
    assert all(error.line == 1 for error in found.errors)
    assert "s3cr3t" not in "".join(map(str, found.errors))


# ---- VS Code ----

VS_CODE: Any = {
    "inputs": [
        {"id": "api-key", "type": "promptString", "password": True, "description": "The key"},
        {"id": "zone", "type": "pickString", "options": ["eu", "us"], "default": "eu"},
        {"id": "made", "type": "command", "command": "x"},
    ],
    "servers": {
        "a": {
            "command": "${workspaceFolder}/run",
            "env": {"KEY": "${input:api-key}", "ZONE": "${input:zone}"},
            "envFile": "${workspaceFolder}/.env",
        },
        "b": {"type": "http", "url": "https://x.example", "headers": {"K": "${input:api-key}"}},
    },
}


@pytest.mark.covers("M-11")
def test_inputs_of_vs_code_are_asked_for_once(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# more\nexport MORE_TOKEN='f1le secret'\nKEY=lost\nPLAIN = x # said\n\nnonsense\n"
    )
    asked: list[InputField] = []

    def ask(one: InputField) -> str:
        asked.append(one)
        return "us" if one.options else "k3y-value"

    found = loaded(tmp_path, VS_CODE, ".vscode/mcp.json", ask=ask)
    a, b = found.unwrap()
    assert [(one.id, one.hidden) for one in asked] == [("api-key", True), ("zone", False)]
    assert a.command == f"{tmp_path}/run"
    assert a.env == {"MORE_TOKEN": "f1le secret", "KEY": "k3y-value", "PLAIN": "x", "ZONE": "us"}
    assert b.headers == {"K": "k3y-value"}
    assert a.redact("k3y-value f1le secret") == "*** ***"


@pytest.mark.covers("M-11")
def test_an_input_that_nobody_can_give_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("")
    found = loaded(tmp_path, VS_CODE, ".vscode/mcp.json")
    assert [error.path for error in found.errors] == ["servers.a.env.KEY", "servers.b.headers.K"]
    assert "set the environment variable CLAWMODE_INPUT_API_KEY" in str(found.errors[0])
    given = {"CLAWMODE_INPUT_API_KEY": "k3y-value", "CLAWMODE_INPUT_ZONE": "eu"}
    monkeypatch.setitem(globals(), "ENVIRONMENT", given)
    assert len(loaded(tmp_path, VS_CODE, ".vscode/mcp.json").unwrap()) == 2
    (tmp_path / ".env").unlink()
    (error,) = loaded(tmp_path, VS_CODE, ".vscode/mcp.json").errors
    assert error.path == "servers.a.envFile"
    assert "cannot be read: No such file" in str(error)


def test_a_password_is_not_shown_while_it_is_typed(tmp_path: Path, zygote: Zygote) -> None:
    env = {"ABOUT": "${input:api-key}", "ZONE": "${input:zone}"}
    file = {"inputs": VS_CODE["inputs"], "servers": {"s": raw(env=env)}}
    (tmp_path / "mcp.json").write_text(json.dumps(file))
    program = "const {env} = (await MCP.s.environment()).structuredContent; return `z-${env.ZONE}`"
    (tmp_path / "program.js").write_text(program)
    arguments = ("run", "program.js", "--mcp-config", "mcp.json", "--approve", "always")
    with Seat(zygote, *arguments, cwd=tmp_path) as person:
        person.reads("The key:")
        person.reads("> ")
        person.types("s3cr3t-key\r")
        person.reads("zone (eu, us):")
        person.types("us\r")
        person.reads("z-us")
        assert person.leaves()[0] == 0
    assert "s3cr3t-key" not in person.seen


# ---- Limits ----


@pytest.mark.anyio
@pytest.mark.covers("M-11")
@pytest.mark.parametrize(
    ("limits", "left", "notes"),
    [
        ({"enabledTools": ["read_a", "read_b"]}, ["read_a", "read_b"], 0),
        ({"disabledTools": ["delete"]}, ["read_a", "read_b"], 0),
        ({"enabledTools": ["read_*"], "disabledTools": ["*_b"]}, ["read_a"], 0),
        ({"enabledTools": []}, [], 0),
        ({"enabledTools": ["*"]}, ["delete", "read_a", "read_b"], 0),
        ({"disabledTools": ["delet", "[a-z]*"]}, ["delete", "read_a", "read_b"], 2),
    ],
)
async def test_a_tool_that_is_not_enabled_is_neither_listed_nor_callable(
    limits: Any, left: list[str], notes: int
) -> None:
    tools = [
        {"name": name, "inputSchema": {"type": "object"}} for name in ("delete", "read_a", "read_b")
    ]
    async with connected({"s": listed(*tools, **limits)}) as servers:
        assert [tool.name for tool in servers.tools()] == left
        assert len(view_of(servers, "s").notes) == notes


# ---- Anything ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    *(
        "command",
        "args",
        "env",
        "environment",
        "url",
        "httpUrl",
        "headers",
        "type",
        "auth",
        "oauth",
    ),
    *("timeout", "tools", "includeTools", "env_vars", "env_http_headers", "bearer_token_env_var"),
    *("startup_timeout_sec", "envFile", "enabled", "disabled"),
]
ENTRY = st.dictionaries(
    st.sampled_from(KEYS),
    JSON | st.sampled_from(["http", "https://x", "${A}", "{env:A}", "{file:/x}", "${input:a}"]),
)


@pytest.mark.hostile
@given(
    st.dictionaries(
        st.sampled_from(["mcp", "mcpServers", "servers", "mcp_servers", "context_servers"]),
        JSON | st.dictionaries(st.text(max_size=5), ENTRY | JSON, max_size=3),
    ),
    JSON,
    JSON,
)
@examples(150)
def test_whatever_another_client_writes_it_is_read_or_refused(
    data: Any, inputs: Any, tools: Any
) -> None:
    path = Path(os.environ["PYTEST_FUZZ_FOLDER"]) / "mcp.json"
    path.write_text(json.dumps({**data, "inputs": inputs, "tools": tools}))
    with contextlib.suppress(ConfigurationError):
        found = load(path, {})
        assert json.dumps([str(error) for error in found.errors])
    read(data, {})


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_FUZZ_FOLDER", str(tmp_path))

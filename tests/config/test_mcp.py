"""Which servers there are: ours and other clients' entries, variables, secrets, and mistakes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.config.mcp import McpConfig, load, read, read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.settings import Bearer, OAuth, ServerSettings
from clawmode.records import (
    MAX_PROBLEMS,
)

ENVIRONMENT = {"TOKEN": "s3cr3t-token", "EMPTY": "", "PORT": "80"}


def one(entry: Any) -> ServerSettings:
    (server,) = read_servers({"s": entry}, ENVIRONMENT).unwrap()
    return server


def refused(entry: Any) -> ConfigurationError:
    found = read_servers({"s": entry, "other": {"command": "x"}}, ENVIRONMENT)
    assert [server.name for server in found.servers] == ["other"]
    (error,) = found.errors
    return error


# ---- Shapes ----


def test_a_command_is_started_and_an_address_is_called() -> None:
    local = one({"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "cwd": "/tmp"})
    assert (local.transport, local.command, local.args) == ("stdio", "npx", ("-y", "x"))
    assert (local.env, local.cwd) == ({"A": "1"}, "/tmp")
    remote = one({"url": "https://x.example/mcp", "headers": {"X-A": "1"}})
    assert (remote.transport, remote.url) == ("streamable-http", "https://x.example/mcp")
    assert remote.headers == {"X-A": "1"}


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://x.example/sse"}, "sse"),
        ({"url": "https://x.example/sse?a=1"}, "sse"),
        ({"url": "https://x.example/sse", "type": "http"}, "streamable-http"),
        ({"url": "https://x.example/a", "type": "sse"}, "sse"),
        ({"url": "https://x.example/a", "transport": "streamable-http"}, "streamable-http"),
        ({"serverUrl": "https://x.example/a"}, "streamable-http"),
        ({"httpUrl": "https://x.example/a"}, "streamable-http"),
        ({"command": "x", "url": "https://x.example/a", "type": "stdio"}, "stdio"),
        ({"command": "x", "type": "local"}, "stdio"),
    ],
)
def test_the_transport_is_said_or_seen(entry: Any, transport: str) -> None:
    assert one(entry).transport == transport


def test_defaults_and_what_can_be_set() -> None:
    plain = one({"command": "x"})
    assert (plain.timeout, plain.connect_timeout) == (60.0, 30.0)
    assert (plain.enabled, plain.trust_annotations, plain.auth) == (True, False, None)
    entry = {"command": "x", "timeoutMs": 1500, "connectTimeoutMs": 2e3, "trustAnnotations": True}
    assert (one(entry).timeout, one(entry).connect_timeout) == (1.5, 2.0)
    assert one(entry).trust_annotations


@pytest.mark.parametrize("entry", [{"disabled": True}, {"enabled": False}])
def test_a_server_that_is_switched_off_needs_no_variables(entry: Any) -> None:
    assert not one({"command": "x", "env": {"A": "${UNSET}"}, **entry}).enabled


def test_ours_and_theirs_are_read_together() -> None:
    found = read(
        {
            "mcp": {"servers": {"a": {"command": "x"}}},
            "mcpServers": {"b": {"command": "y"}},
            "servers": {"c": {"command": "not ours to read"}},
            "tools": {"codeMode": True},
        },
        {},
    )
    assert [server.name for server in found.unwrap()] == ["a", "b"]
    assert found.warnings == []
    assert read({}, {}) == McpConfig()


CLIENTS: dict[str, str] = {
    "a desktop client": """{
        "globalShortcut": "",
        "mcpServers": {
            "filesystem": {"command": "npx", "args": ["-y", "server-filesystem", "/tmp"]}
        }
    }""",
    "an editor": """{
        // comments and trailing commas
        "inputs": [{"id": "key", "type": "promptString", "password": true}],
        "servers": {
            "github": {"type": "http", "url": "https://x.example/mcp/", "gallery": true},
            "local": {"command": "uvx", "args": ["x"], "envFile": ".env", "dev": {"watch": "**"}},
        },
    }""",
    "another editor": """{
        "mcpServers": {
            "a": {"serverUrl": "https://x.example/sse", "disabledTools": ["x"], "timeout": 60},
            "b": {"command": "x", "autoApprove": [], "alwaysAllow": ["y"], "disabled": false}
        }
    }""",
    "a command line": """{
        "mcpServers": {
            "a": {"type": "stdio", "command": "${HOME:-/root}/x", "args": [], "env": {}},
            "b": {"type": "sse", "url": "${BASE:-https://x.example}/sse", "oauth": {}}
        }
    }""",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_file_of_another_client_is_read_as_it_is(client: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(CLIENTS[client], "utf-8")
    (tmp_path / ".env").write_text("A=1")
    found = load(path, {})
    assert found.unwrap()
    assert found.warnings == []


# ---- Variables ----


def test_variables_are_filled_in_everywhere() -> None:
    local = one(
        {
            "command": "/opt/${DIR:-bin}/x",
            "args": ["--port=${PORT}", "${env:TOKEN}", "${EMPTY}", "${EMPTY:-default}", "$HOME"],
            "env": {"A": "a${TOKEN}b${PORT}"},
        }
    )
    assert local.command == "/opt/bin/x"
    assert local.args == ("--port=80", "s3cr3t-token", "", "default", "$HOME")
    assert local.env == {"A": "as3cr3t-tokenb80"}
    remote = one(
        {
            "url": "https://${HOST:-x.example}/${TOKEN}",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
            "auth": {"type": "bearer", "token": "${TOKEN}"},
        }
    )
    assert remote.url == "https://x.example/s3cr3t-token"
    assert remote.headers == {"Authorization": "Bearer s3cr3t-token"}
    assert remote.auth == Bearer(token="s3cr3t-token")


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"command": "x", "args": ["a", "${UNSET}"]}, "mcp_servers.s.args[1]"),
        ({"command": "x", "env": {"KEY": "${UNSET}"}}, "mcp_servers.s.env.KEY"),
        ({"url": "https://x/${UNSET}"}, "mcp_servers.s.url"),
        ({"url": "https://x", "headers": {"X-Key": "${UNSET}"}}, 'mcp_servers.s.headers["X-Key"]'),
        (
            {"url": "https://x", "auth": {"type": "bearer", "token": "${UNSET}"}},
            "mcp_servers.s.auth.token",
        ),
    ],
)
def test_a_variable_that_is_not_set_is_named_with_server_and_field(entry: Any, path: str) -> None:
    error = refused(entry)
    assert error.path == path
    assert "UNSET of server 's' is not set" in str(error)


def test_what_only_another_client_can_fill_in_is_refused() -> None:
    error = refused({"command": "x", "env": {"KEY": "prefix-s3cr3t-${input:github_token}"}})
    assert "${input...} of server 's' is not supported" in str(error)
    assert "s3cr3t" not in str(error)


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("entry", "path", "said"),
    [
        ("npx x", "", "found a string, expected an object"),
        ({}, "", "the entry has neither a `command` nor a `url`"),
        ({"command": ""}, "command", "found an empty string"),
        ({"command": 7}, "command", "found a number, expected a string"),
        ({"command": "x", "url": "https://x"}, "", "choose one with `transport`"),
        ({"command": "x", "args": "-y x"}, "args", "found a string, expected a list of strings"),
        ({"command": "x", "args": [1]}, "args[0]", "found a number, expected a string"),
        ({"command": "x", "env": ["A=1"]}, "env", "found a list, expected an object"),
        ({"command": "x", "env": {"A": 1}}, "env.A", "found a number, expected a string"),
        ({"command": "x", "env": {"A=B": "1"}}, 'env["A=B"]', "environment variable"),
        ({"command": "x", "env": {"A": "a\0b"}}, "env.A", "NUL"),
        ({"command": "x", "type": "http"}, "", "found no url"),
        ({"url": "https://x", "type": "stdio"}, "", "found no command"),
        ({"url": "https://x", "type": "ws"}, "type", '"stdio" or "streamable-http" or "sse"'),
        (
            {"url": "https://x", "type": "sse", "transport": "http"},
            "type",
            "contradicts",
        ),
        ({"url": "x.example/mcp"}, "url", "http:// or https://"),
        ({"url": "file:///etc/passwd"}, "url", "http:// or https://"),
        ({"url": "https://x:99999/"}, "url", "http:// or https://"),
        ({"url": "https://x y/"}, "url", "http:// or https://"),
        ({"url": "https://x", "headers": {"A B": "1"}}, 'headers["A B"]', "name of a header"),
        ({"url": "https://x", "headers": {"A": "1\n2"}}, "headers.A", "line break"),
        ({"command": "x", "timeoutMs": "10s"}, "timeoutMs", "expected milliseconds"),
        ({"command": "x", "timeoutMs": 0}, "timeoutMs", "expected milliseconds"),
        ({"command": "x", "enabled": "yes"}, "enabled", "expected true or false"),
        ({"command": "x", "enabled": True, "disabled": True}, "disabled", "contradicts `enabled`"),
        ({"command": "x", "auth": "oauth"}, "auth", "in `env`"),
        ({"url": "https://x", "auth": "basic"}, "auth", "oauth"),
        ({"url": "https://x", "auth": {"type": "basic"}}, "auth.type", '"bearer" or "oauth"'),
        ({"url": "https://x", "auth": {"type": "bearer"}}, "auth.token", "expected a string"),
        (
            {"url": "https://x", "auth": {"type": "oauth", "redirectPort": 70_000}},
            "auth.redirectPort",
            "a port number",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_its_path(entry: Any, path: str, said: str) -> None:
    error = refused(entry)
    assert error.path == ("mcp_servers.s." + path).rstrip(".")
    assert said in str(error)
    assert error.code == "invalid_config"


@pytest.mark.parametrize("key", ["type", "transport"])
def test_a_transport_is_quoted_only_if_it_cannot_be_a_secret(key: str) -> None:
    assert "correct-horse" not in str(refused({"url": "https://x", key: "correct-horse-battery"}))
    assert "streamable-htp" in str(refused({"url": "https://x", key: "streamable-htp"}))


def test_all_mistakes_of_an_entry_are_reported_at_once() -> None:
    entry: Any = {"command": 7, "args": "-y", "env": {"A": 1}, "timeoutMs": "1m", "cwd": ""}
    found = read_servers({"s": entry, "other": {"command": "x"}})
    assert [error.path.rpartition("mcp_servers.s.")[2] for error in found.errors] == [
        *("timeoutMs", "command", "args", "env.A", "cwd"),
    ]
    assert found.fatal == []
    assert [server.name for server in found.with_broken_entries()] == ["other", "s"]


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "x" * 65])
def test_a_name_that_could_not_be_part_of_an_id_is_refused(name: str) -> None:
    (error,) = read_servers({name: {"command": "x"}}).errors
    assert "without a colon" in str(error)


def test_two_servers_that_a_policy_cannot_tell_apart_are_refused() -> None:
    entries: Any = {"a.b": {"command": "x"}, "A-B": {"command": "y"}}
    (error,) = read_servers(entries).errors
    assert 'cannot tell this name from mcp_servers["a.b"]' in str(error)
    both: Any = {"mcp": {"servers": {"a": {"command": "x"}}}, "mcpServers": {"a": {"command": "y"}}}
    (error,) = read(both).errors
    assert error.path == "mcpServers.a"


@pytest.mark.parametrize("value", [[], "x", 3])
def test_what_is_no_map_of_servers_is_an_error(value: Any) -> None:
    assert read_servers(value).errors[0].path == "mcp_servers"
    assert read({"mcp": value}).errors[0].path == "mcp"
    assert read({"mcpServers": value}).errors[0].path == "mcpServers"


def test_our_own_keys_are_spelt_right_or_warned_of() -> None:
    entry: Any = {"command": "x", "timeoutMS": 1, "comand": "y", "transprt": "z"}
    ours = read({"mcp": {"servers": {"s": entry}}}).warnings
    assert [str(warning) for warning in ours] == [
        f"mcp.servers.s.{key}: unknown key, it has no effect; the nearest known one is {nearest}"
        for key, nearest in [
            ("timeoutMS", "timeoutMs"),
            ("comand", "command"),
            ("transprt", "transport"),
        ]
    ]
    theirs = read({"mcpServers": {"s": entry | {"timeout": 5, "description": "z"}}}).warnings
    assert [warning.path for warning in theirs] == [
        f"mcpServers.s.{key}" for key in ("timeoutMS", "comand", "transprt")
    ]
    assert read({"mcp": {"server": {}}}).warnings[0].path == "mcp.server"


@pytest.mark.parametrize("keys", [80_000, 100])
@pytest.mark.parametrize("section", ["ours", "theirs"])
def test_unknown_keys_without_end_take_no_time(keys: int, section: str) -> None:
    entry: Any = {"command": "x"} | {f"comand{n:05}": 1 for n in range(keys)}
    servers: Any = {f"s{n}": entry for n in range(80_000 // keys)}
    began = time.process_time()
    found = read({"mcp": {"servers": servers}} if section == "ours" else {"mcpServers": servers})
    assert time.process_time() - began < 5
    assert len(found.unwrap()) == len(servers)
    if section == "ours":
        assert len(found.warnings) == MAX_PROBLEMS + 1
        assert found.warnings[-1].message.startswith("more problems of this kind follow")


def test_what_is_worth_a_look_is_said() -> None:
    found = read_servers({"s": {"command": "x", "timeoutMs": 5, "connectTimeoutMs": 1e9}})
    assert [server.timeout for server in found.unwrap()] == [0.1]
    assert [warning.path for warning in found.warnings] == [
        "mcp_servers.s.timeoutMs",
        "mcp_servers.s.connectTimeoutMs",
    ]
    clear: Any = {"url": "http://x.example/", "headers": {"A": "b"}}
    assert "https" in read_servers({"s": clear}).warnings[0].message
    assert read_servers({"s": clear | {"url": "http://localhost/"}}).warnings == []


# ---- Files ----


def test_errors_and_warnings_of_a_file_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{\n  mcpServers: {\n    a: {\n      command: "x",\n      env: {KEY: "${UNSET}"},\n'
        '      timeoutMS: 3 },\n    b: {command: "y", comand: "z"}\n  }\n}\n',
        "utf-8",
    )
    found = load(path, {})
    (error,) = found.errors
    assert str(error).startswith(f"{path}:5:13: mcpServers.a.env.KEY: ")
    assert (error.path, error.line) == ("mcpServers.a.env.KEY", 5)
    assert [str(warning).partition(": unknown")[0] for warning in found.warnings] == [
        f"{path}:7:23: mcpServers.b.comand"
    ]


def test_a_file_that_is_no_json_is_an_error_that_does_not_quote_it(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"env": {"K": "s3cr3t-token" oops}}}}', "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert (caught.value.line, caught.value.column > 1) == (1, True)
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load(tmp_path / "none.json")
    path.write_text("[]", "utf-8")
    with pytest.raises(ConfigurationError, match="expected an object"):
        load(path)


# ---- Secrets ----

SECRETIVE: Any = {
    "local": {
        "command": "x",
        "args": ["--api-key", "k3y-literal", "--token=t0k-literal", "--verbose", "${TOKEN}"],
        "env": {"GITHUB_TOKEN": "gh-literal", "MODE": "production"},
    },
    "remote": {
        "url": "https://user:p4ssword@x.example/mcp?key=qu3ry-key",
        "headers": {"Authorization": "Bearer h3ader-token"},
        "auth": {"type": "oauth", "clientId": "me", "clientSecret": "cl1ent-secret"},
    },
    "bearer": {"url": "https://x.example", "auth": {"type": "bearer", "token": "b3arer-token"}},
}
SECRETS = (
    *("k3y-literal", "t0k-literal", "s3cr3t-token", "gh-literal", "p4ssword", "qu3ry-key"),
    *("h3ader-token", "cl1ent-secret", "b3arer-token"),
)


def test_settings_show_no_secret() -> None:
    servers = read_servers(SECRETIVE, ENVIRONMENT).unwrap()
    shown = repr(servers) + "".join(server.place for server in servers)
    for secret in SECRETS:
        assert secret not in shown
    assert servers[1].place == "https://x.example/mcp"


def test_secrets_are_struck_out_of_any_text() -> None:
    servers = read_servers(SECRETIVE, ENVIRONMENT).unwrap()
    text = " ".join((*SECRETS, "production", "--verbose"))
    for server in servers:
        text = server.redact(text)
    assert text == "*** *** *** *** *** *** *** *** *** production --verbose"


@pytest.mark.parametrize("key", ["args", "env", "headers", "auth", "url", "cwd", "type", "enabled"])
def test_an_error_does_not_quote_a_value(key: str) -> None:
    base = {"url": "https://x.example"} if key in ("headers", "auth", "url") else {"command": "x"}
    secret = "s3cr3t-value"
    wrongs: list[Any] = [secret, [secret, 7], {"A": [secret], "type": secret}]
    for wrong in wrongs:
        found = read_servers({"s": {**base, key: wrong}})
        for error in found.errors:
            assert "s3cr3t-value" not in str(error)


@pytest.mark.covers("N-22")
@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ({}, ""),
        ({"mcp_server": {"gh": {"command": "x"}}}, "the servers seem to be in 'mcp_server'"),
        ({"mcp": {"allowed": ["x"]}}, ""),
        ({"gh": {"command": "npx"}}, 'put the entries into {"mcpServers": {...}}'),
        ({"mcpserver": 7}, "found 'mcpserver'"),
        ({"name": "io.example/x", "packages": [{"command": "x"}]}, ""),
    ],
)
def test_a_file_without_servers_says_what_was_expected(
    tmp_path: Path, data: dict[str, Any], advice: str
) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps(data))
    with pytest.raises(
        ConfigurationError, match="no servers in this file, expected mcpServers"
    ) as it:
        load(file)
    assert advice in str(it.value)
    assert str(file) in str(it.value)


@pytest.mark.covers("N-22")
def test_a_file_whose_section_is_empty_is_worth_a_word(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {}}')
    (warning,) = load(file).warnings
    assert "no servers in this file" in str(warning)


@pytest.mark.covers("N-22")
@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            {"comand": "npx"},
            "found 'comand' (did you mean 'command'?), expected a command or a url",
        ),
        ({"URL": "http://x"}, "(did you mean 'url'?)"),
        ({"server_url": "http://x"}, "(did you mean 'serverUrl'?)"),
        ({"x": 1}, "the entry has neither a `command` nor a `url`; it needs one of them"),
        ({"url": "http://x", "type": "websocket"}, 'found "websocket", expected "stdio"'),
    ],
)
def test_a_slip_of_the_pen_names_the_nearest_key_or_the_value(entry: Any, told: str) -> None:
    (error,) = read_servers({"gh": entry}).errors
    assert told in str(error)


def test_oauth_is_read() -> None:
    assert one({"url": "https://x", "auth": "oauth"}).auth == OAuth()
    auth = {"type": "oauth", "clientId": "me", "scopes": "read write", "redirectPort": 8_123}
    assert one({"url": "https://x", "auth": auth}).auth == OAuth(
        client_id="me", scopes=("read", "write"), redirect_port=8_123
    )


# ---- Anything ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
ENTRY = st.dictionaries(
    st.sampled_from(
        [
            "command",
            "args",
            "env",
            "cwd",
            "url",
            "headers",
            "transport",
            "type",
            "auth",
            "timeoutMs",
        ]
    ),
    JSON | st.sampled_from(["http", "stdio", "https://x", "oauth", "${A}", "${A:-b}", ["${"]]),
)


@given(JSON | st.dictionaries(st.text(max_size=5), ENTRY, max_size=3))
@examples(150)
def test_whatever_is_written_it_is_read_or_refused(value: Any) -> None:
    found = read_servers(value, {})
    assert isinstance(value, dict) or found.errors
    read({"mcp": {"servers": value}, "mcpServers": value}, {})
    assert json.dumps([str(error) for error in found.errors])

"""Moving servers out of JSON and TOML files and back, as text: comments and the rest survive."""

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawmode.config import edits, json5
from clawmode.exceptions import ConfigurationError

OWN = {"clawmode": {"command": "clawmode", "args": ["mcp"]}}
PATH = ("mcpServers",)

COMMENTED = """\
// the editor
{
  "theme": "dark", // at night
  "mcpServers": {
    // files of the team
    "files": { "command": "npx", "args": ["-y", "a, {b}"] }, // read only
    "time": {"command": "uvx", /* inside */ "env": {"K": "// no comment"}},
    /* old one */
    "old": {"url": "https://example.com/mcp"}, // a comma follows
    // the end
  },
  "z": [1, 2],
}
"""


def test_servers_take_their_comments_along_and_leave_the_others_behind() -> None:
    rest, moved = edits.split(COMMENTED, "json", PATH, ["files", "old"], OWN)
    for text in ("// the editor", "// at night", "/* inside */", "// the end"):
        assert text in rest
    for text in ("// files of the team", "// read only", "/* old one */", "// a comma follows"):
        assert text in moved
        assert text not in rest
    parsed: Any = json5.parse(rest, "rest").value
    assert parsed["mcpServers"] == {
        "time": {"command": "uvx", "env": {"K": "// no comment"}},
        **OWN,
    }
    assert (parsed["theme"], parsed["z"]) == ("dark", [1, 2])


def test_servers_come_back_with_their_comments() -> None:
    rest, moved = edits.split(COMMENTED, "json", PATH, ["files", "old"], OWN)
    back = edits.join(rest.replace('"dark"', '"light"'), "json", PATH, moved, [*OWN])
    before: Any = json5.parse(COMMENTED, "before").value
    assert json5.parse(back, "back").value == before | {"theme": "light"}
    comments = ["// the editor", "// at night", "// files of the team", "// read only"]
    comments += ["/* inside */", "/* old one */", "// a comma follows", "// the end"]
    assert [back.count(comment) for comment in comments] == [1] * len(comments)


def test_a_server_that_was_added_in_the_meantime_is_not_overwritten() -> None:
    rest, moved = edits.split(COMMENTED, "json", PATH, ["files", "time", "old"], OWN)
    changed = rest.replace('"clawmode":', '"files": {"command": "mine"},\n"clawmode":')
    back: Any = json5.parse(edits.join(changed, "json", PATH, moved, [*OWN]), "back").value
    assert back["mcpServers"]["files"] == {"command": "mine"}
    assert set(back["mcpServers"]) == {"files", "time", "old"}


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers":{"a":{"command":"x"}}}',
        '{"mcpServers": {"a": {"command": "x"},}}',
        '{\r\n  "mcpServers": {\r\n    "a": {"command": "x"} // end\r\n  }\r\n}\r\n',
        '{"x": {"mcpServers": {"no": {}}}, "mcpServers": {"a": {"command": "x"} /* c */ , }}',
        "{mcpServers: {'a': {command: 'x'}}}",
        '{"mcpServers": {"a": {"command": "x"}, // last\n}}',
        '{"mcpServers": {"a": {"command": "x"}, /* one */ /* two */\n}}',
    ],
)
def test_unusual_layouts_stay_valid(text: str) -> None:
    rest, moved = edits.split(text, "json", PATH, ["a"], OWN)
    assert edits.servers_in(rest, "json", PATH, "rest") == OWN
    assert edits.servers_in(moved, "json", PATH, "moved") == {"a": {"command": "x"}}
    back = edits.join(rest, "json", PATH, moved, [*OWN])
    assert json5.parse(back, "back").value == json5.parse(text, "text").value


TOML = '''\
# codex
model = "o3" # the model

[mcp_servers.files] # files
command = "npx"
args = [
  "a",
  "[mcp_servers.none]",
]
[mcp_servers.files.env]
K = """
[mcp_servers.none]
# no comment
"""

# about the time
[mcp_servers.time]
command = "uvx"

[mcp_servers."with.dot"]
url = "https://example.com"

# profiles
[[profiles]]
model = "y"
'''


def test_tables_of_toml_move_with_their_comments_and_come_back() -> None:
    names = ["files", "time", "with.dot"]
    rest, moved = edits.split(TOML, "toml", ("mcp_servers",), names, OWN)
    assert "# about the time" in moved
    assert "# profiles" in rest
    assert "# the model" in rest
    back = edits.join(rest, "toml", ("mcp_servers",), moved, [*OWN])
    assert tomllib.loads(back) == tomllib.loads(TOML)


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers.a.command = "x"\n',
        'mcp_servers = {a = {command = "x"}}\n',
        '[mcp_servers]\na = {command = "x"}\n',
    ],
)
def test_toml_without_tables_of_its_own_is_rejected_and_not_damaged(text: str) -> None:
    with pytest.raises(ConfigurationError, match="by hand"):
        edits.split(text, "toml", ("mcp_servers",), ["a"], OWN)


@pytest.mark.parametrize(
    ("text", "syntax"),
    [('{"mcpServers": {"a": "sk-secret" "b"}}', "json"), ('a = "sk-secret" "b"', "toml")],
)
def test_an_invalid_file_is_an_error_with_a_place_and_without_a_quotation(
    text: str, syntax: edits.Syntax
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        edits.servers_in(text, syntax, PATH, "the-file")
    assert "the-file" in str(caught.value)
    assert re.search(r"1:|line 1", str(caught.value))
    assert "sk-secret" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("a/*,{}[]\"'\\\n#: ", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/ ", max_size=3), inner),
    max_leaves=6,
)
TRIVIA = st.sampled_from(["", " ", "\n  ", " // x, { }\n", " /* } , */ ", "\n\n", "\t"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A text with comments anywhere, its servers, and the rest of it."""
    servers = draw(st.dictionaries(st.text("xyz{}/", min_size=1, max_size=3), JSON, min_size=1))
    rest = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
    gap = lambda: draw(TRIVIA)  # noqa: E731

    def write(members: list[tuple[str, str]]) -> str:
        parts = [f"{gap()}{json.dumps(key)}{gap()}:{gap()}{value}{gap()}" for key, value in members]
        trailing = "," + gap() if parts and draw(st.booleans()) else ""
        return "{" + ",".join(parts) + trailing + gap() + "}"

    inner = write([(key, json.dumps(value)) for key, value in servers.items()])
    whole = [(key, json.dumps(value)) for key, value in rest.items()]
    whole.insert(draw(st.integers(0, len(whole))), ("mcpServers", inner))
    return gap() + write(whole) + gap(), servers, rest


@given(documents(), st.data())
def test_whatever_the_layout_is_nothing_is_lost(
    document: tuple[str, dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    text, servers, rest = document
    names = data.draw(st.sets(st.sampled_from([*servers]), min_size=1))
    remaining, moved = edits.split(text, "json", PATH, names, OWN)
    kept = {key: value for key, value in servers.items() if key not in names}
    assert json5.parse(remaining, "remaining").value == rest | {"mcpServers": kept | OWN}
    assert edits.servers_in(moved, "json", PATH, "moved") == {key: servers[key] for key in names}
    back = edits.join(remaining, "json", PATH, moved, [*OWN])
    assert json5.parse(back, "back").value == rest | {"mcpServers": servers}


def test_many_tables_of_toml_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codex writes a table for each project."""
    parsed: list[int] = []
    is_toml = edits._is_toml

    def counted(text: str) -> bool:
        parsed.append(len(text))
        return is_toml(text)

    monkeypatch.setattr(edits, "_is_toml", counted)
    projects = "".join(f'# {n}\n[projects."/p{n}"]\ntrust = "yes"\n\n' for n in range(50))
    text = f'{projects}[mcp_servers.a]\ncommand = "x"\n'
    rest, taken = edits.split(text, "toml", ("mcp_servers",), ["a"], {})
    assert (rest, taken) == (projects, '[mcp_servers.a]\ncommand = "x"\n')
    assert sum(parsed) < 4 * len(text)

"""`clawmode.json5`: which file is read, what it says for an agent, and what a check tells."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawmode.config import CodeModeConfig
from clawmode.config_file import MAX_SIZE, ConfigFile, check, code_mode, find, load
from clawmode.exceptions import ConfigurationError
from clawmode.types import JsonValue


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder, and no variable set."""
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    for name in ("CLAWMODE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def write(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def refused(path: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert [str(problem) for problem in check(path).errors] == [str(caught.value)]
    return caught.value


# ---- Finding ----


def test_the_nearest_file_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() is None
    user = write(home / ".config" / "clawmode" / "clawmode.json5")
    assert find() == user
    moved = write(home / "xdg" / "clawmode" / "clawmode.json5")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert find() == moved
    write(Path("clawmode.json5"))
    assert find() == Path("clawmode.json5")
    monkeypatch.setenv("CLAWMODE_CONFIG", "~/variable.json5")
    assert find() == home / "variable.json5"
    assert find("explicit.json5") == Path("explicit.json5")


def test_a_variable_that_is_empty_or_relative_where_it_must_not_be_is_not_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write(home / ".config" / "clawmode" / "clawmode.json5")
    write(Path("here") / "clawmode" / "clawmode.json5")
    monkeypatch.setenv("CLAWMODE_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    assert find() == user


def test_without_a_file_everything_has_its_default() -> None:
    assert load() == ConfigFile({})
    assert code_mode(load().data) == (CodeModeConfig(), [])
    report = check()
    assert (report.path, report.errors, report.warnings) == (None, [], [])


def test_a_file_that_cannot_be_looked_at_is_not_passed_over(home: Path) -> None:
    """To take it for absent would mean the tools that it hides."""
    (home / ".config").mkdir()
    (home / ".config" / "clawmode").symlink_to("clawmode")  # goes round in circles
    with pytest.raises(ConfigurationError, match=r"cannot read the configuration .*clawmode.json5"):
        load()


def test_a_folder_in_the_way_that_is_none_means_no_file(home: Path) -> None:
    write(home / ".config")
    assert find() is None


# ---- Reading ----


def test_a_file_is_json5(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "\ufeff// ours\n{tools: {codeMode: true,},}")
    file = load(path)
    assert (file.data, file.path) == ({"tools": {"codeMode": True}}, path)


@pytest.mark.parametrize("name", ["missing.json5", "nowhere/missing.json5", "", "a\0b"])
def test_a_named_file_that_cannot_be_read_is_an_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot read the configuration"):
        load(name)
    assert len(check(name).errors) == 1


def test_a_file_named_by_the_variable_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("clawmode.json5"))
    monkeypatch.setenv("CLAWMODE_CONFIG", "missing.json5")
    with pytest.raises(ConfigurationError, match=r"the configuration missing\.json5: No"):
        load()


@pytest.mark.covers("CF-6", "ER-invalid_config")
def test_a_syntax_error_names_file_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{\n  tools: {\n    codeMode: on,\n  },\n}")
    error = refused(path)
    assert (error.code, error.line, error.column) == ("invalid_config", 3, 15)
    assert str(error) == (
        f"{path}:3:15: expected a value, found 'o'\n        codeMode: on,\n                  ^"
    )
    (problem,) = check(path).errors
    assert (problem.path, problem.line) == ("", 3)


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{tools: {codeMode: true},\ntools: {}}")
    assert "'tools' stands in line 1 already" in str(refused(path))


@pytest.mark.parametrize(
    ("text", "found"), [("[]", "an empty list"), ("'x'", '"x"'), ("null", "null"), ("1", "1")]
)
def test_a_file_without_an_object_at_the_top_is_an_error(
    tmp_path: Path, text: str, found: str
) -> None:
    error = refused(write(tmp_path / "c.json5", text))
    assert f"found {found}, expected an object" in str(error)
    assert error.expected == "an object"


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.json5"
    path.write_bytes(b"{\n a: '\xff'}")
    error = refused(path)
    assert error.line == 2
    assert "not UTF-8: byte 7 is 0xff" in str(error)


def test_a_file_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.json5"
    path.write_bytes(b"{}" + b" " * (MAX_SIZE - 2))
    assert load(path).data == {}
    path.write_bytes(b"{}" + b" " * (MAX_SIZE - 1))
    assert f"over {MAX_SIZE} bytes" in str(refused(path))


# ---- Code mode ----

DATA: dict[str, JsonValue] = {
    "tools": {"codeMode": {"enabled": True, "timeoutMs": 500}, "allow": ["*"]},
    "agents": {
        "list": [
            {"id": "plain"},
            {"id": "off", "tools": {"codeMode": False}},
            {"id": "slow", "tools": {"codeMode": {"timeoutMs": 60_001}}},
            {"id": "wrong", "tools": {"codeMode": "on"}},
        ]
    },
}


@pytest.mark.covers("CF-4")
@pytest.mark.parametrize(
    ("agent_id", "enabled", "timeout_ms"),
    [
        (None, True, 500),
        ("unlisted", True, 500),
        ("plain", True, 500),
        ("off", False, 500),
        ("slow", True, 60_000),
    ],
)
def test_an_agent_has_its_own_settings_over_the_global_ones(
    agent_id: str | None, enabled: bool, timeout_ms: int
) -> None:
    config, _ = code_mode(DATA, agent_id)
    assert (config.enabled, config.timeout_ms) == (enabled, timeout_ms)


@pytest.mark.covers("CF-4", "CF-5", "CF-6")
def test_warnings_and_errors_of_an_agent_name_its_place_in_the_list() -> None:
    _, (warning,) = code_mode(DATA, "slow")
    assert warning.path == "agents.list[2].tools.codeMode.timeoutMs"
    with pytest.raises(ConfigurationError) as caught:
        code_mode(DATA, "wrong")
    assert caught.value.path == "agents.list[3].tools.codeMode"


@pytest.mark.covers("CF-6")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"tools": True}, "tools"),
        ({"tools": None}, "tools"),
        ({"agents": []}, "agents"),
        ({"agents": {"list": {}}}, "agents.list"),
        ({"agents": {"list": [7]}}, "agents.list[0]"),
        ({"agents": {"list": [{}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": ""}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": 1}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": "a", "tools": 1}]}}, "agents.list[0].tools"),
        ({"agents": {"list": [{"id": "a"}, {"id": "a"}]}}, "agents.list[1].id"),
    ],
)
def test_a_wrong_type_on_the_way_to_a_setting_is_an_error(
    data: dict[str, JsonValue], path: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        code_mode(data)
    assert (caught.value.path, caught.value.code) == (path, "invalid_config")


@pytest.mark.covers("CF-5")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"tools": {"codemode": True}}, "tools.codemode"),
        ({"tools": {"code-mode": True}}, 'tools["code-mode"]'),
        ({"tool": {"codeMode": True}}, "tool"),
        ({"agent": {"list": []}}, "agent"),
        ({"codeMode": True}, "codeMode"),
        ({"agents": {"list": [{"id": "a", "codeMode": True}]}}, "agents.list[0].codeMode"),
    ],
)
def test_a_near_miss_on_the_way_to_a_setting_is_a_warning(
    data: dict[str, JsonValue], path: str
) -> None:
    config, (warning,) = code_mode(data)
    assert warning.path == path
    assert not config.enabled


def test_sections_of_others_are_left_alone() -> None:
    data: dict[str, JsonValue] = {
        "gateway": {"port": 1},
        "tools": {"allow": [], "sandbox": {}, "toolSearch": True},
        "agents": {"defaults": {}, "list": [{"id": "a", "name": "A", "model": "m"}]},
    }
    assert code_mode(data, "a") == (CodeModeConfig(), [])


# ---- Checking ----


@pytest.mark.covers("CF-5", "CF-6")
def test_a_check_tells_all_errors_and_warnings_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.json5",
        """{
  tools: {
    codeMode: {
      enabled: "yes",
      timeoutMs: 5,
      timoutMs: 7,
    },
  },
  agents: {
    list: [
      { id: "a", tools: { codeMode: {
        languages: ["ruby"],
        maxOutputBytes: 1.5,
      } } },
      {},
    ],
  },
}""",
    )
    report = check(path)
    assert report.path == path
    assert [str(error) for error in report.errors] == [
        f'{path}:4: tools.codeMode.enabled: found "yes", expected true or false',
        f'{path}:12: agents.list[0].tools.codeMode.languages[0]: found "ruby", '
        'expected "javascript" or "typescript"',
        f"{path}:15: agents.list[1].id: found nothing, expected the name of an agent",
    ]
    assert [str(warning) for warning in report.warnings] == [
        f"{path}:5: tools.codeMode.timeoutMs: 5 is under 100: 100 is used",
        f"{path}:6: tools.codeMode.timoutMs: unknown key, it has no effect; "
        "the nearest known one is timeoutMs",
        f"{path}:13: agents.list[0].tools.codeMode.maxOutputBytes: 1.5 is not a positive "
        "integer: 65536 is used",
    ]
    assert [warning.path for warning in report.warnings][:1] == ["tools.codeMode.timeoutMs"]


def test_a_check_finds_nothing_in_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{tools: {codeMode: {enabled: true, timeoutMs: 1e4}}}")
    report = check(path)
    assert (report.errors, report.warnings) == ([], [])


ODD: st.SearchStrategy[JsonValue] = st.sampled_from(
    [None, True, False, 0, 1.5, 10**6, "", "a", "timeoutMs", [], {}, ["a"], {"codeMode": 1}]
)


def objects(**members: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    """Objects with some of these members, or nothing like it."""
    some = st.fixed_dictionaries({}, optional={**members, "tool": ODD})
    return some.map(dict[str, JsonValue]) | ODD


TOOLS = objects(codeMode=objects(enabled=ODD, timeoutMs=ODD))
AGENTS = st.lists(objects(id=ODD, tools=TOOLS), max_size=3).map(list[JsonValue]) | ODD


def settings_of(data: dict[str, JsonValue]) -> CodeModeConfig | ConfigurationError:
    try:
        return code_mode(data, "a")[0]
    except ConfigurationError as error:
        return error


@settings(derandomize=True, max_examples=200, deadline=None)
@given(tools=TOOLS, agents=objects(list=AGENTS))
def test_any_file_has_settings_or_a_configuration_error(
    tools: JsonValue, agents: JsonValue
) -> None:
    found = settings_of({"tools": tools, "agents": agents})
    if isinstance(found, ConfigurationError):
        assert found.path
    else:
        assert 100 <= found.timeout_ms <= 60_000


@settings(derandomize=True, max_examples=100, deadline=None)
@given(raw=st.binary(max_size=40) | st.text("{}[]:, '\"toolscdeMagnti/*\n1", max_size=40))
def test_a_check_of_any_file_does_not_raise(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json5"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    report = check(path)
    assert report.path == path
    assert all(problem.line >= 0 for problem in report.errors + report.warnings)

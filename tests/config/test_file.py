"""`clawmode.json5`: which file is read, what a check tells, and where things stand in it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.app.loading import check, set_up
from clawmode.app.setup import Options
from clawmode.config.file import MAX_SIZE, ConfigFile, find, load
from clawmode.exceptions import ConfigurationError


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
    assert [str(problem) for problem in check(str(path)).errors] == [str(caught.value)]
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


def test_a_user_without_a_home_folder_can_use_the_file_of_the_working_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert find() is None
    write(Path("clawmode.json5"))
    assert find() == Path("clawmode.json5")


def test_without_a_file_everything_has_its_default() -> None:
    assert load() == ConfigFile({})
    report = check(None)
    assert (report.path, report.errors, report.warnings) == (None, [], [])


def test_a_file_that_cannot_be_looked_at_is_not_passed_over(home: Path) -> None:
    """To take it for absent would mean the tools that it hides."""
    (home / ".config").mkdir()
    (home / ".config" / "clawmode").symlink_to("clawmode")  # goes round in circles
    with pytest.raises(ConfigurationError, match=r"cannot read the configuration .*clawmode.json5"):
        load()


def test_a_path_through_a_file_means_no_file(home: Path) -> None:
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
    (problem,) = check(str(path)).errors
    assert (problem.path, problem.line) == ("", 3)


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{tools: {codeMode: true},\ntools: {}}")
    assert "duplicate key 'tools', first used in line 1" in str(refused(path))


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
    assert f"larger than {MAX_SIZE} bytes" in str(refused(path))


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
    report = check(str(path))
    assert report.path == path
    assert [str(error) for error in report.errors] == [
        f'{path}:4:7: tools.codeMode.enabled: found "yes", expected true or false',
        f'{path}:12:21: agents.list[0].tools.codeMode.languages[0]: found "ruby", '
        'expected "javascript" or "typescript"',
        f"{path}:15:7: agents.list[1].id: found nothing, expected the name of an agent",
    ]
    assert [str(warning) for warning in report.warnings] == [
        f"{path}:5:7: tools.codeMode.timeoutMs: 5 is under 100: 100 is used",
        f"{path}:6:7: tools.codeMode.timoutMs: unknown key, it has no effect; "
        "the nearest known one is timeoutMs",
        f"{path}:13:9: agents.list[0].tools.codeMode.maxOutputBytes: 1.5 is not a positive "
        "integer: 65536 is used",
    ]
    assert [warning.path for warning in report.warnings][:1] == ["tools.codeMode.timeoutMs"]


def test_a_check_finds_nothing_in_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{tools: {codeMode: {enabled: true, timeoutMs: 1e4}}}")
    report = check(str(path))
    assert (report.errors, report.warnings) == ([], [])


@examples(100, derandomize=True)
@given(raw=st.binary(max_size=40) | st.text("{}[]:, '\"toolscdeMagnti/*\n1", max_size=40))
def test_a_check_of_any_file_does_not_raise(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json5"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    report = check(str(path))
    assert report.path == path
    assert all(problem.line >= 0 for problem in report.errors + report.warnings)


def test_a_check_goes_through_the_whole_file_in_its_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.json5",
        """{
  mcp: { servers: { s: { command: 5 }, t: { command: "t", timeoutms: 1 } } },
  browser: {},
  models: { providers: { lab: { api: "soap", timeoutSeconds: 0 } } },
  agents: { list: [{ id: "a", tools: { deny: ["group:nope"], codeMode: 1 } }] },
  tools: { profile: "none" },
}""",
    )
    report = check(str(path))
    assert [(it.line, it.column, it.path) for it in report.errors] == [
        (2, 26, "mcp.servers.s.command"),
        (4, 26, "models.providers.lab.baseUrl"),
        (4, 33, "models.providers.lab.api"),
        (5, 47, "agents.list[0].tools.deny[0]"),
        (5, 62, "agents.list[0].tools.codeMode"),
        (6, 12, "tools.profile"),
    ]
    assert [(it.line, it.column, it.path) for it in report.warnings] == [
        (2, 59, "mcp.servers.t.timeoutms"),
        (3, 3, "browser"),
        (4, 46, "models.providers.lab.timeoutSeconds"),
    ]


def test_a_place_is_found_whatever_the_key_and_the_line_breaks(tmp_path: Path) -> None:
    text = '{\r\n"a.b[0]": 1,\r"\\u00e9\\"]": 1,\n\n  \'x y\': 1, models: {"[": 1}}'
    report = check(str(write(tmp_path / "c.json5", text)))
    assert [(it.line, it.column) for it in report.warnings] == [(2, 1), (3, 1), (5, 3), (5, 22)]


def test_nothing_is_set_up_with_an_error_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json5", "{\n agents: { list: 5 },\n session: 7 }")
    with pytest.raises(ConfigurationError) as caught:
        set_up(Options(config=str(path)))
    assert str(caught.value) == (
        f"{path}:2:12: agents.list: found a number, expected a list\n"
        "(1 more: see clawmode config check)"
    )
    assert (caught.value.path, caught.value.line, caught.value.column) == ("agents.list", 2, 12)


def test_what_is_set_up_has_the_whole_configuration_and_its_warnings(tmp_path: Path) -> None:
    text = """{ agents: { defaults: { model: "p/m", sandbox: { mode: "all" } } },
      tools: { deny: ["exec"], codeMode: { timeoutMs: 5 } }, logging: {} }"""
    path = write(tmp_path / "c.json5", text)
    setup = set_up(Options(config=str(path)))
    assert setup.configuration.agents.defaults.model is not None
    assert setup.configuration.agents.defaults.model.primary == "p/m"
    assert setup.config.timeout_ms == 100
    assert [layer.name for layer in setup.policy.layers] == ["global", "sandbox"]
    assert setup.notes == [warning.text for warning in check(str(path)).warnings]
    assert len(setup.notes) == 2


# ---- Secrets ----

SECRET = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        "{ models: { providers: { x: { apiKey: '%s' on } } } }",
        "{ gateway: { auth: { token: %s } } }",
        "{\n headers: { Authorization: 'Bearer %s' b } }",
        "{\n apiKey:\n  '%s' x }",
        "{ plain: '%s' x }",
        "{ password: '%s', password: 1 }",
        "{ models: { providers: { x: '%s' } } }",
        "{ models: { providers: { x: { apiKey: ['%s'], auth: { env: '%s' } } } } }",
        "{ auth: { profiles: '%s' } }",
        "{ mcp: { servers: { s: { env: { TOKEN: ['%s'] } } } } }",
        "{ mcp: { servers: { s: '%s' } } }",
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "c.json5", text.replace("%s", SECRET))
    report = check(str(path))
    assert len(report.errors) >= 1
    assert SECRET not in str(report)
    try:
        said = str(
            set_up(Options(config=str(path))).notes
        )  # without one MCP server, all else works
    except ConfigurationError as error:
        said = str(error)
    assert SECRET not in said


# ---- Any file ----

LARGE = {
    "many unknown keys": "{" + "".join(f"k{n}: 1," for n in range(60_000)) + "}",
    "many unknown keys of code mode": "{tools: {codeMode: {"
    + "".join(f"k{n}: 1," for n in range(60_000))
    + "}}}",
    "many unknown keys of a server": "{mcp: {servers: {s: {command: 'x', "
    + "".join(f"k{n}: 1," for n in range(60_000))
    + "}}}}",
    "many wrong agents": "{agents: {list: [" + "{}," * 200_000 + "]}}",
    "many agents with code mode": "{tools: {codeMode: {a: 1, timeoutMs: 5}}, agents: {list: ["
    + "".join(f"{{id:'{n}',tools:{{codeMode:{{}}}}}}," for n in range(2000))
    + "]}}",
    "a long key with many members": "{models: {providers: {"
    + "k" * 400_000
    + ": {"
    + "".join(f"k{n}: 1," for n in range(40_000))
    + "}}}}",
    "many lines": "{" + "\n" * 900_000 + "agents: {list: [" + "{}," * 200 + "]}}",
    "many rules": "{tools: {allow: [" + "'group:nope'," * 60_000 + "]}}",
}


@pytest.mark.parametrize("what", LARGE)
def test_a_check_of_a_large_file_takes_no_time(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "c.json5", LARGE[what])
    report = check(str(path))
    assert len(report.errors) + len(report.warnings) <= 202
    assert all(problem.line for problem in report.errors + report.warnings)

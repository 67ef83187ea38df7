"""Typical mistakes in a configuration, and everything that `config check` prints about each.

`mistakes.txt` has the mistakes: a title after `##`, the file, a line `->`, and the output. To write
the outputs again after a change of messages, run these tests with `REWRITE_MISTAKES=1`.
"""

import json
import os
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from clawmode.app.console import ProgramOutput
from clawmode.app.loading import check
from clawmode.config.resolve import Configuration
from clawmode.records import schema_of
from clawmode.terminal.listings import print_report

FILE = Path(__file__).parent / "mistakes.txt"
CASES = re.findall(r"^## ([^\n]*)\n(.*?)\n?->\n(.*?)\n\n", FILE.read_text("utf-8"), re.M | re.S)
SECRET = "sk-4711-secret"


class Page(ProgramOutput):
    """The output of a command in this process, because a process for each mistake would be slow."""

    def __init__(self) -> None:
        self.text = StringIO()
        self._file: Any = self.text
        self.is_terminal = False
        self.failure = ""


@pytest.mark.parametrize("title", [title for title, _, _ in CASES])
def test_a_mistake_is_reported_with_its_place_and_what_to_do(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.endswith("_KEY")]:
        monkeypatch.delenv(name)
    ((text, expected),) = [case[1:] for case in CASES if case[0] == title]
    Path("c.json5").write_text(text, "utf-8")
    page = Page()
    print_report(page, check("c.json5", tmp_path / "state"))
    printed = page.text.getvalue().strip()
    if os.environ.get("REWRITE_MISTAKES"):
        whole = FILE.read_text("utf-8")
        FILE.write_text(whole.replace(f"->\n{expected}\n\n", f"->\n{printed}\n\n", 1), "utf-8")
        return
    assert printed == expected
    assert SECRET not in printed
    problems = printed.splitlines()[2:]
    assert problems, "nothing was found"
    assert all(re.match(r"(error|warning) +\d+:\d+ ", problem) for problem in problems)


def test_there_are_at_least_thirty_mistakes() -> None:
    assert len(CASES) >= 30


def paths_of(schema: Any, node: Any) -> Iterator[list[str | int]]:
    """Yields the path of every place of a configuration."""
    yield []
    node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    members = dict(node.get("properties", {}))
    if isinstance(node.get("additionalProperties"), dict):
        members["name"] = node["additionalProperties"]
    for key, member in members.items():
        yield from ([key, *rest] for rest in paths_of(schema, member))
    if "items" in node:
        yield from ([0, *rest] for rest in paths_of(schema, node["items"]))


@pytest.mark.hostile
def test_a_key_in_any_place_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = schema_of(Configuration)
    places = list(paths_of(schema, schema))
    assert len(places) > 200
    for place in places:
        value: Any = SECRET
        for part in reversed(place):
            value = [value] if part == 0 else {part: value}
        Path("c.json5").write_text(json.dumps(value), "utf-8")
        report = check("c.json5", tmp_path / "state")
        assert SECRET not in repr(report), place

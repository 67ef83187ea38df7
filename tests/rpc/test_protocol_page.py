"""The page of the protocol has every method, parameter, event and code, with its scope."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from clawmode.gateway.method_table import METHODS
from clawmode.rpc import link, protocol
from clawmode.rpc.scopes import EVENTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "gateway-protocol.md"
TEXT = PAGE.read_text("utf-8")
SESSION = {"sessionKey", "sessionId", "agentId"}


def rows(title: str) -> dict[str, list[str]]:
    """The tables of a section: the cells of each row, by the first."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells if row[0] not in ("method", "event", "---")}


def test_every_method_is_there_and_no_other() -> None:
    assert list(rows("Methods")) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_scope_its_effect_and_its_parameters(name: str) -> None:
    method = METHODS[name]
    scope, effect, given, _ = rows("Methods")[name]
    schema: Any = method.schema
    wanted = set(schema["properties"]) - {"idempotencyKey"}
    needed = set(schema["required"]) - {"idempotencyKey"}
    told = {it for it in wanted if f"`{it}`" in given or f"`{it}:" in given}
    if re.search(r"(^|[ ,])session([ ,]|$)", given):
        told |= SESSION
    assert scope == (f"`{method.scope}`" if method.scope else "none")
    assert effect == ", ".join(
        ["once"] * method.effect + ["again"] * (method.effect and method.repeatable)
    )
    assert told == wanted
    assert {it for it in wanted if f"**`{it}`**" in given} == needed


def test_every_event_is_there_with_its_scope_and_no_other() -> None:
    told = {name: row[0] for name, row in rows("Events").items()}
    assert told == {name: f"`{scope}`" if scope else "none" for name, scope in EVENTS.items()}


def test_every_code_is_there() -> None:
    found = rows("Errors")
    closing = {
        protocol.CLOSE_POLICY,
        protocol.CLOSE_TOO_LARGE,
        protocol.CLOSE_RESTART,
        protocol.CLOSE_SLOW,
        link.CLOSE_SILENT,
    }
    assert set(get_args(protocol.Code)) <= set(found)
    assert {str(code) for code in closing} <= set(found)

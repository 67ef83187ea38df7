"""URL, encoding and `structuredClone` as cells find them: the cases of `web_cases.json`."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.stepping import value_of

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Completion, Resume, Settlement, Start, Suspension

pytestmark = pytest.mark.anyio

GROUPS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("web_cases.json").read_text(encoding="utf-8")
)


@pytest.mark.covers("EX-13")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{group}: {case['name']}")
        for group, cases in GROUPS.items()
        for case in cases
    ],
)
async def test_a_web_class_does_what_browsers_do(pool: Pool, case: dict[str, Any]) -> None:
    # As `JSON.stringify` has it, where `undefined` has no place: the cases are browsers'.
    source = f"return JSON.stringify(await (async () => {{ {case['code']} }})())"
    assert json.loads(await value_of(pool, source)) == case["expect"]


@pytest.mark.covers("EX-13")
async def test_what_they_hold_outlives_a_snapshot(pool: Pool) -> None:
    source = """
        const url = new URL("http://a/?x=1"), params = url.searchParams;
        const bytes = new TextEncoder().encode("é"), decoder = new TextDecoder();
        const copy = structuredClone(new Map([["when", new Date(0)]])), seen = [];
        seen.push(decoder.decode(bytes.slice(0, 1), { stream: true }));
        queueMicrotask(() => seen.push("microtask"));
        setTimeout((word) => seen.push(word), 0, "timer");
        await tools.call("t");
        params.append("y", "2");
        await new Promise((resolve) => setTimeout(resolve, 1));
        console.log(atob(btoa("bytes")));
        seen.unshift(decoder.decode(bytes.slice(1)));
        return [url.href, copy.get("when"), seen];"""
    cell, deadline = pool.cell(), time.monotonic() + 10
    outcome = await pool.step(cell, Start(source), deadline)
    moved = pool.cell(await pool.freeze(cell))
    pool.drop(cell)
    while isinstance(outcome, Suspension):
        settled = tuple(Settlement(request.id, True, b"1") for request in outcome.requests)
        outcome = await pool.step(moved, Resume(settled, now=outcome.due), deadline)

    assert isinstance(outcome, Completion), outcome
    assert json.loads(outcome.value) == [
        "http://a/?x=1&y=2",
        "1970-01-01T00:00:00.000Z",
        ["é", "", "microtask", "timer"],
    ]
    assert [item.body for item in outcome.output] == [b'"bytes"']

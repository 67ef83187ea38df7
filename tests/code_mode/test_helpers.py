"""The helpers of programs: lists in pages, many items at once, and rate limits."""

from typing import Any

import pytest
from tests.support.waiting import idle

from clawmode import CodeMode, CodeModeConfig, Pool, tool

pytestmark = pytest.mark.anyio

NUMBERS = list(range(95))


class TooFast(Exception):
    """A rate limit."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("429 Too Many Requests")
        self.retry_after = retry_after


async def value_of(pool: Pool, source: str, *tools: Any, **config: Any) -> Any:
    async with CodeMode(tools=tools, pool=pool, config=CodeModeConfig(**config)) as code_mode:
        result = await code_mode.exec(source)
        while result.status == "waiting":
            result = await code_mode.wait(result.run_id)
    assert result.status == "completed", result.error
    return result.value


async def error_of(pool: Pool, source: str, *tools: Any) -> str:
    return str(await value_of(pool, f"try {{ {source} }} catch (e) {{ return e.message }}", *tools))


# ---- Pages ----

PAGE = """const numbers = Array.from({ length: 95 }, (_, n) => n);
const cut = (at) => numbers.slice(at, at + 10);
const after = (at) => at + 10 < 95 ? at + 10 : null;
const calls = [];
const called = (at) => { calls.push(at); return at };"""


@pytest.mark.covers("AD-10")
@pytest.mark.parametrize(
    "page",
    [
        "{ items: cut(c), next_cursor: after(c) }",
        "{ data: cut(c), nextPageToken: after(c) || '' }",
        "{ orders: cut(c), next: after(c) ?? undefined }",
        "{ content: [{}], structuredContent: { rows: cut(c), nextCursor: after(c) } }",
        "{ data: { nodes: cut(c), pageInfo: { endCursor: c + 10, hasNextPage: c + 10 < 95 } } }",
        "{ results: cut(c), meta: { next_token: after(c) } }",
    ],
)
async def test_a_list_with_cursors_is_read_to_its_end(pool: Pool, page: str) -> None:
    source = f"""{PAGE}
const all = await helpers.byCursor(async (c = 0) => (called(c), {page}));
return [all, calls]"""
    assert await value_of(pool, source) == [NUMBERS, list(range(0, 95, 10))]


@pytest.mark.covers("AD-10")
@pytest.mark.parametrize(
    ("page", "last"),
    [
        ("cut((p - 1) * 10)", 10),
        ("{ items: cut((p - 1) * 10), total_pages: 10 }", 10),
        ("{ items: cut((p - 1) * 10), total: 95 }", 10),
        ("{ items: cut((p - 1) * 10), pagination: { hasMore: p < 10 } }", 10),
        ("{ items: cut((p - 1) * 10), has_more: true }", 11),
        ("{ items: cut(count) }", 10),
    ],
)
async def test_a_list_with_numbers_is_read_to_its_end(pool: Pool, page: str, last: int) -> None:
    source = f"""{PAGE}
const all = await helpers.byPage(async (p, count) => (called(p), {page}));
return [all, calls]"""
    assert await value_of(pool, source) == [NUMBERS, list(range(1, last + 1))]


@pytest.mark.covers("AD-10")
async def test_limits_and_choices_are_respected(pool: Pool) -> None:
    source = f"""{PAGE}
const page = (c = 0) => ({{ a: [1], deep: {{ b: cut(called(c)) }}, more: after(c) }});
const options = {{ limit: 25, items: (page) => page.deep.b, next: "more" }};
const first = await helpers.byCursor(page, options);
const tens = (p) => ({{ a: [], b: cut(p * 10) }});
const second = await helpers.byPage(tens, {{ start: 0, items: "b" }});
return [first, second, calls]"""
    assert await value_of(pool, source) == [NUMBERS[:25], NUMBERS, [0, 10, 20]]


@pytest.mark.hostile
@pytest.mark.covers("AD-10")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("await helpers.byCursor(() => ({ items: [1], next: 'a' }))", "twice"),
        ("await helpers.byPage(() => [1])", "same as the page before"),
        ("let n = 0; await helpers.byCursor(() => ({ items: [n], next: ++n }))", "over 1000 pages"),
        ("await helpers.byPage((n) => ({ items: [n], has_more: true }))", "over 1000 pages"),
        ("const big = Array(6000).fill(1); await helpers.byPage((n) => [n, ...big])", "{limit}"),
        ("await helpers.byPage(() => ({ a: 1, b: [], c: [] }))", '["a","b","c"]'),
        (
            "const loop = {}; loop.data = loop.meta = loop; await helpers.byCursor(() => loop)",
            "list",
        ),
        (
            "await helpers.byPage(() => ({ isError: true, content: ['no such list'] }))",
            "no such list",
        ),
        ("await helpers.byCursor(7)", "takes a function"),
        ("await helpers.map([1])", "takes a function"),
        ("await helpers.map(undefined, () => 1)", "undefined"),
        ("await helpers.map([1], () => 1, { concurrency: 0 })", "concurrency"),
        ("await helpers.retry()", "takes a function"),
    ],
)
async def test_what_cannot_work_is_an_error_that_says_why(
    pool: Pool, source: str, said: str
) -> None:
    assert said in await error_of(pool, source)


# ---- Many items ----


@pytest.mark.covers("AD-10")
async def test_many_items_are_mapped_in_order_and_few_at_once(pool: Pool) -> None:
    running: list[int] = []
    most: list[int] = []

    @tool
    async def double(n: int) -> int:
        """Double a number."""
        running.append(n)
        most.append(len(running))
        await idle()
        running.remove(n)
        return 2 * n

    source = (
        "helpers.map(new Set(Array(30).keys()), (n, at) => tools.double({ n: n + at }), OPTIONS)"
    )
    doubled = [4 * n for n in range(30)]
    assert await value_of(pool, f"return {source.replace(', OPTIONS', '')}", double) == doubled
    assert max(most) == 8
    most.clear()
    source = source.replace("OPTIONS", "{ concurrency: 3 }")
    assert await value_of(pool, f"return {source}", double) == doubled
    assert max(most) == 3


@pytest.mark.covers("AD-10")
async def test_a_failure_stops_the_rest_or_is_data(pool: Pool) -> None:
    called: list[int] = []

    @tool
    async def odd(n: int) -> int:
        """Refuse even numbers."""
        called.append(n)
        if n % 2 == 0:
            raise ValueError(f"{n} is even")
        return n

    source = "await helpers.map([1, 2, 3, 4, 5], (n) => tools.odd({ n }), { concurrency: 1 })"
    assert await error_of(pool, source, odd) == "2 is even"
    assert called == [1, 2]
    source = """const all = await helpers.map([1, 2], (n) => tools.odd({ n }), { settled: true });
return all.map(({ status, value, reason }) => [status, value ?? reason.code])"""
    assert await value_of(pool, source, odd) == [["fulfilled", 1], ["rejected", "tool_failed"]]


# ---- Rate limits ----


@pytest.mark.covers("AD-10", "AD-8")
async def test_what_a_rate_limit_refused_is_made_again(pool: Pool) -> None:
    tries: dict[int, int] = {}

    @tool
    async def limited(n: int) -> int:
        """Refuse twice."""
        tries[n] = tries.get(n, 0) + 1
        if tries[n] < 3:
            raise TooFast(0.02 if n % 2 else None)
        return n

    source = """const began = Date.now();
const all = await helpers.map([1, 3, 5], (n) => helpers.retry(() => tools.limited({ n })));
return [all, Date.now() - began >= 40]"""
    assert await value_of(pool, source, limited) == [[1, 3, 5], True]
    assert set(tries.values()) == {3}
    # The pause is longer than the program may take at once: it is parked meanwhile.
    source = "return helpers.retry(() => tools.limited({ n: 2 }))"
    assert await value_of(pool, source, limited, timeout_ms=300) == 2


@pytest.mark.covers("AD-10")
async def test_repeating_ends(pool: Pool) -> None:
    calls: list[str] = []

    @tool
    async def never(kind: str) -> None:
        """Refuse always."""
        calls.append(kind)
        raise ValueError("no") if kind == "other" else TooFast(100 if kind == "long" else 0.001)

    source = """const codes = [];
for (const kind of ["short", "long", "other"]) {
  await helpers.retry(() => tools.never({ kind }), { attempts: 4, maxMs: 5000 })
    .catch((error) => codes.push(error.code));
}
let resolved = 0;
const refused = { isError: true, code: "rate_limited", retryAfterMs: 1 };
const last = await helpers.retry(() => (resolved++, refused), { attempts: 3 });
const fine = await helpers.retry(() => ({ code: "rate_limited" }));
return [codes, resolved, last.isError, fine.code]"""
    expected = [["rate_limited", "rate_limited", "tool_failed"], 3, True, "rate_limited"]
    assert await value_of(pool, source, never) == expected
    assert calls == ["short"] * 4 + ["long", "other"]


@pytest.mark.hostile
async def test_a_program_that_spoils_its_globals_harms_only_itself(pool: Pool) -> None:
    source = """Array.isArray = Array.from = Object.keys = Math.min = Date.now = () => { throw 1 };
Object.defineProperty(Array.prototype, "0", { set() { throw 2 }, configurable: true });
const mapped = await helpers.map({ length: 2, 0: 1, 1: 2 }, (n) => n).catch(() => "spoilt");
const listed = await helpers.byPage((n) => ({ items: n < 3 ? [n] : [] }));
delete Array.prototype[0];
return [mapped, listed.length, Object.getPrototypeOf(helpers)]"""
    mapped, listed, prototype = await value_of(pool, source)
    assert mapped in ([1, 2], "spoilt")
    assert (listed, prototype) == (2, None)

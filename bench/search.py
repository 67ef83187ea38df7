"""Measures what search finds: by words, with vectors, and beside FastMCP.

    make bench-search
    python -m bench.search [--record]

Through the catalog, as programs search it. Ours are the tools of public MCP servers, what people
ask of them and what models ask of them (`bench/data/`), written down before they were measured.
Both sets of requests are frozen, and also shown by stratum. The public sets are measured where
`../shared/data/tool-retrieval/` is, whole and by half. `bench.search_quality` measures how search
bears 10,000 tools, and requests that nothing answers.

No set here is untouched. The tables are fitted without them, but their figures were read while
constants were chosen: the number of related words, `MIN_WORTH`, which words the vocabulary leaves
out, both thresholds, `MEANING` and the weights of fields. Expect less on tools of your own.
"""

import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.search import RankerMaker, go_by_words
from clawmode.catalog.vectors import MissingExtra, choose_ranker
from clawmode.catalog.words import split_words, terms_of
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonObject

ROOT = Path(__file__).parents[1]
DATA = ROOT / "bench/data"
SHARED = [folder / "shared/data/tool-retrieval" for folder in (ROOT.parent, ROOT.parents[1])]
PUBLIC = next(filter(Path.is_dir, SHARED), SHARED[0])  # beside the clone, or beside its worktrees
RECORD = ROOT / "bench/results/search.json"

DEPTH = 10  # answers that are looked at
OURS, MODELS = "MCP servers, people's words", "MCP servers, models' words"
STRATA = ("names a product", "has content words", "hint only")
PRODUCTS = frozenset(
    "atlassian aws brave cloudflare cloudwatch confluence docker figma firecrawl github gitlab "
    "gmail google grafana helm jira kubectl kubernetes linear loki mongodb notion playwright "
    "postgres prometheus puppeteer sentry slack sqlite stripe supabase".split()
)
TITLES = {"seal-tools": "Seal-Tools", "bifrost-r3": "Bifrost", "metatool": "MetaTool"}
OTHER_HALF = ", other half"
PLAIN, WORDS, BOTH = "FastMCP's BM25", "words", "and vectors"

# What was measured of FastMCP itself (hit@1, recall@5, NDCG@10); it is not installed here. `Plain`
# has to come to the same.
PUBLISHED = {
    "Seal-Tools": (92.0, 83.6, 86.3),
    "Bifrost": (41.3, 55.3, 50.9),
    "MetaTool": (27.1, 43.6, 38.1),
}

Finder: TypeAlias = Callable[[str], list[str]]
"""A request to the names of what is found, the best first."""


class Request(NamedTuple):
    """What a person asks, and the names of the tools that answer."""

    text: str
    expected: frozenset[str]


class Quality(NamedTuple):
    """Means over the requests, in percent."""

    hit_1: float
    hit_8: float
    recall_5: float
    ndcg_10: float
    mrr: float


METRICS = dict(zip(Quality._fields, ("hit@1", "hit@8", "recall@5", "NDCG@10", "MRR"), strict=True))
Figures: TypeAlias = dict[str, dict[str, Quality]]
"""By set, then by ranker."""
Gains: TypeAlias = dict[str, dict[str, list[float]]]
"""The NDCG@10 of each request, in percent, by set, then by ranker."""
SAMPLES = 1_000


class ToolSet(NamedTuple):
    """Tools, what they are called in the answers, by id, and what is asked of them."""

    title: str
    tools: list[Tool]
    names: dict[str, str]
    requests: list[Request]


# The sets


def read_ours() -> ToolSet:
    tools: list[Tool] = []
    names: dict[str, str] = {}
    for entry in json.loads((DATA / "mcp_tools.json").read_text("utf-8"))["tools"]:
        parameters = dict.fromkeys(entry["parameters"], "")
        tools.append(_to_tool(entry["name"], entry["description"], parameters, entry["server"]))
        names[tools[-1].id] = f"{entry['server']}/{entry['name']}"
    return ToolSet(OURS, tools, names, _requests(DATA / "mcp_queries.json"))


def read_models() -> ToolSet:
    return read_ours()._replace(title=MODELS, requests=_requests(DATA / "model_queries.json"))


def with_strata(whole: ToolSet) -> list[ToolSet]:
    """The set, and its requests by how much they say."""
    by_stratum: dict[str, list[Request]] = {name: [] for name in STRATA}
    for request in whole.requests:
        by_stratum[stratum(request, whole)].append(request)
    parts = (
        whole._replace(title=f"{whole.title}: {name}", requests=requests)
        for name, requests in by_stratum.items()
    )
    return [whole, *(part for part in parts if part.requests)]


def stratum(request: Request, of: ToolSet) -> str:
    """Whether a request names a product, shares a word with a tool that answers, or neither."""
    terms = _terms(request.text)
    if terms & PRODUCTS:
        return STRATA[0]
    right = [tool for tool in of.tools if of.names[tool.id] in request.expected]
    said = set().union(*(_terms(f"{tool.name} {tool.description}") for tool in right))
    return STRATA[1] if terms & said else STRATA[2]


def _terms(text: str) -> set[str]:
    words = split_words(text)
    return {word.casefold() for word in words}.union(*map(terms_of, words))


def read_public() -> list[ToolSet]:
    """The sets that are there, each whole, and the half that constants were not chosen on."""
    return [
        made
        for file, title in TITLES.items()
        if (path := PUBLIC / f"{file}.json").is_file()
        for made in _with_other_half(_read_set(path, title))
    ]


def _read_set(path: Path, title: str) -> ToolSet:
    tools = [
        # A plugin's: the words of its parameters are searched.
        _to_tool(tool["name"], tool["description"], tool["parameters"], tool["server"], "plugin")
        for tool in json.loads(path.read_text("utf-8"))["tools"]
    ]
    return ToolSet(title, tools, {tool.id: tool.name for tool in tools}, _requests(path))


def _with_other_half(whole: ToolSet) -> tuple[ToolSet, ToolSet]:
    return whole, whole._replace(title=whole.title + OTHER_HALF, requests=whole.requests[1::2])


def _requests(path: Path) -> list[Request]:
    queries = json.loads(path.read_text("utf-8"))["queries"]
    return [Request(query["query"], frozenset(query["expected"])) for query in queries]


def _to_tool(
    name: str,
    description: str,
    parameters: dict[str, str],
    server: str,
    source: ToolSource = "mcp",
) -> Tool:
    properties: JsonObject = {key: {"description": text} for key, text in parameters.items()}
    schema: JsonObject = {"type": "object", "properties": properties}
    run = lambda given, context: None  # noqa: E731 - nobody calls it
    return Tool(name, description, schema, run, source=source, owner=server)


# The rankers


def make_finders(of: ToolSet) -> dict[str, Finder]:
    makers: dict[str, RankerMaker] = {WORDS: go_by_words}
    try:
        makers[BOTH] = choose_ranker(required=True)
    except MissingExtra as error:
        print(f"not measured with vectors: {error}", file=sys.stderr)
    finders: dict[str, Finder] = {PLAIN: Plain(of).find}
    for name, ranker in makers.items():
        finders[name] = partial(_find, Catalog(of.tools, ranker=ranker, mcp=True), of.names)
    return finders


def _find(catalog: Catalog, names: dict[str, str], text: str) -> list[str]:
    found = (names[str(entry["id"])] for entry in catalog.search(text, DEPTH))
    return list(dict.fromkeys(found))


class Plain:
    """BM25 as FastMCP does it: one text for each tool, its parameters' descriptions included."""

    K1 = 1.5
    B = 0.75

    def __init__(self, of: ToolSet) -> None:
        self._names = [of.names[tool.id] for tool in of.tools]
        texts = [Counter(self._words(self._text(tool))) for tool in of.tools]
        self._lengths = [text.total() for text in texts]
        self._average = sum(self._lengths) / len(texts)
        self._having: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for position, text in enumerate(texts):
            for word, count in text.items():
                self._having[word].append((position, count))

    def find(self, text: str) -> list[str]:
        scores: defaultdict[int, float] = defaultdict(float)
        for word in self._words(text):
            having = self._having.get(word, [])
            rarity = math.log(1 + (len(self._names) - len(having) + 0.5) / (len(having) + 0.5))
            for position, count in having:
                length = 1 - self.B + self.B * self._lengths[position] / self._average
                scores[position] += rarity * count * (self.K1 + 1) / (count + self.K1 * length)
        best = sorted(scores, key=lambda position: (-scores[position], position))[:DEPTH]
        return list(dict.fromkeys(self._names[position] for position in best))

    @staticmethod
    def _words(text: str) -> list[str]:
        return [word for word in re.split(r"[\W_]+", text.lower()) if len(word) > 1]

    @staticmethod
    def _text(tool: Tool) -> str:
        properties: Any = tool.parameters["properties"]
        said = (f"{key} {each['description']}" for key, each in properties.items())
        return " ".join((tool.name, tool.description, *said))


# The figures


def measure(find: Finder, requests: list[Request]) -> Quality:
    return _mean([judge(find(request.text), request.expected) for request in requests])


def _mean(each: list[Quality]) -> Quality:
    return Quality(*(100 * sum(column) / len(each) for column in zip(*each, strict=True)))


def judge(found: list[str], expected: frozenset[str]) -> Quality:
    """What one answer is worth, of 1."""
    right = [name in expected for name in found]
    gains = [1 / math.log2(place + 2) for place in range(DEPTH)]
    gained = sum(gain for gain, is_right in zip(gains, right, strict=False) if is_right)
    return Quality(
        float(any(right[:1])),
        float(any(right[:8])),
        sum(right[:5]) / len(expected),
        gained / sum(gains[: len(expected)]),
        1 / (right.index(True) + 1) if any(right) else 0.0,
    )


def differs(title: str, plain: Quality) -> bool:
    """Whether `Plain` is not what FastMCP was measured to be."""
    ours = (plain.hit_1, plain.recall_5, plain.ndcg_10)
    pairs = zip(ours, PUBLISHED.get(title, ours), strict=True)
    return any(abs(one - other) > 0.06 for one, other in pairs)


def measure_all(sets: list[ToolSet]) -> tuple[Figures, Gains]:
    figures: Figures = {}
    gains: Gains = {}
    for of in sets:
        each = {
            name: [judge(find(request.text), request.expected) for request in of.requests]
            for name, find in make_finders(of).items()
        }
        figures[of.title] = {name: _mean(judged) for name, judged in each.items()}
        gains[of.title] = {
            name: [100 * one.ndcg_10 for one in judged] for name, judged in each.items()
        }
    return figures, gains


def interval(now: list[float], before: list[float]) -> tuple[float, float, float]:
    """The difference of two means, and its 95 % interval: a paired bootstrap."""
    pairs = [one - other for one, other in zip(now, before, strict=True)]
    chance = random.Random(7)
    means = sorted(sum(chance.choices(pairs, k=len(pairs))) / len(pairs) for _ in range(SAMPLES))
    low, high = means[int(0.025 * SAMPLES)], means[int(0.975 * SAMPLES)]
    return sum(pairs) / len(pairs), low, high


def read_record() -> Figures:
    return {
        title: {name: Quality(**figures) for name, figures in rankers.items()}
        for title, rankers in _read_kept().get("figures", {}).items()
    }


def read_gains() -> Gains:
    return _read_kept().get("gains", {})


def _read_kept() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}


def write_record(figures: Figures, gains: Gains | None = None) -> None:
    """Keeps what was recorded of sets that were not there this time."""
    RECORD.parent.mkdir(exist_ok=True)
    kept = {
        title: {
            name: {metric: round(value, 2) for metric, value in quality._asdict().items()}
            for name, quality in rankers.items()
        }
        for title, rankers in (read_record() | figures).items()
    }
    each = {
        title: {name: [round(gain, 1) for gain in values] for name, values in rankers.items()}
        for title, rankers in (read_gains() | (gains or {})).items()
    }
    lines = ",\n".join(
        f" {json.dumps(title)}: {json.dumps(rankers)}" for title, rankers in each.items()
    )
    shown = json.dumps(kept, indent=1)
    RECORD.write_text(f'{{"figures": {shown},\n"gains": {{\n{lines}\n}}}}\n', "utf-8")


def show_differences(gains: Gains, recorded: Gains) -> Table:
    """Differences of NDCG@10 with their 95 % intervals."""
    table = Table("set", "NDCG@10 of", "minus that of", "difference", "95 % interval")
    for title, rankers in gains.items():
        before = recorded.get(title, {})
        pairs = [(WORDS, PLAIN, rankers), (BOTH, PLAIN, rankers), (BOTH, WORDS, rankers)]
        pairs += [(name, name, before) for name in (WORDS, BOTH)]
        for name, other, values in pairs:
            now, then = rankers.get(name, []), values.get(other, [])
            if now and len(now) == len(then) and now != then:
                mean, low, high = interval(now, then)
                against = other if values is rankers else "the last record"
                spread = f"{low:+.1f} to {high:+.1f}"
                table.add_row(title, name, against, f"{mean:+.1f}", spread)
        table.add_section()
    return table


def show(sets: list[ToolSet], figures: Figures, recorded: Figures) -> Table:
    table = Table("set", "tools", "requests", "ranker", *METRICS.values())
    for of in sets:
        head = (of.title, f"{len(of.tools):,}", f"{len(of.requests):,}")
        for name, quality in figures[of.title].items():
            before = recorded.get(of.title, {}).get(name, quality)
            table.add_row(*head, name, *map(_compared, quality, before))
            head = ("", "", "")
        table.add_section()
    return table


def _compared(now: float, before: float) -> str:
    return f"{now:.1f}" + (f" ({now - before:+.1f})" if abs(now - before) >= 0.05 else "")


def main() -> None:
    sets = [*with_strata(read_ours()), *with_strata(read_models()), *read_public()]
    if not PUBLIC.is_dir():
        print(f"no public sets: {PUBLIC} is not there", file=sys.stderr)
    (figures, gains), recorded = measure_all(sets), read_record()
    console = Console(width=160)
    console.print(show(sets, figures, recorded))
    console.print(show_differences(gains, read_gains()))
    print(
        "In brackets: against the figures recorded last." if recorded else "Nothing recorded yet."
    )
    for title, rankers in figures.items():
        if differs(title, rankers[PLAIN]):
            print(f"{title}: {PLAIN} was measured to be {PUBLISHED[title]}", file=sys.stderr)
    if "--record" in sys.argv[1:]:
        write_record(figures, gains)


if __name__ == "__main__":
    main()

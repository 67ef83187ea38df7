"""Measures what search finds for a person's words: by words, with vectors, and beside FastMCP.

    make bench-search
    python -m bench.search [--record]

Through the catalog, as programs search it. Ours are the tools of public MCP servers and what people
ask of them (`bench/data/`), written down before anything was measured and never used to choose a
constant. The public sets are measured where `../shared/data/tool-retrieval/` is. Of their requests,
the constants of words and `vectors.MEANING` were chosen on one half; the other is shown apart, and
has served older constants (`CUTOFF`, those of vectors). `bench.search_quality` measures how search
bears 10,000 tools, and requests that nothing answers.
"""

import json
import math
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
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonObject

ROOT = Path(__file__).parents[1]
DATA = ROOT / "bench/data"
PUBLIC = ROOT.parent / "shared/data/tool-retrieval"
RECORD = ROOT / "bench/results/search.json"

DEPTH = 10  # answers that are looked at
OURS = "MCP servers"
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
    each = [judge(find(request.text), request.expected) for request in requests]
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


def measure_all(sets: list[ToolSet]) -> Figures:
    return {
        of.title: {name: measure(find, of.requests) for name, find in make_finders(of).items()}
        for of in sets
    }


def read_record() -> Figures:
    if not RECORD.is_file():
        return {}
    kept = json.loads(RECORD.read_text("utf-8"))
    return {
        title: {name: Quality(**figures) for name, figures in rankers.items()}
        for title, rankers in kept.items()
    }


def write_record(figures: Figures) -> None:
    """Keeps what was recorded of sets that were not there this time."""
    RECORD.parent.mkdir(exist_ok=True)
    kept = {
        title: {
            name: {metric: round(value, 2) for metric, value in quality._asdict().items()}
            for name, quality in rankers.items()
        }
        for title, rankers in (read_record() | figures).items()
    }
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


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
    sets = [read_ours(), *read_public()]
    if len(sets) == 1:
        print(f"no public sets: {PUBLIC} is not there", file=sys.stderr)
    figures, recorded = measure_all(sets), read_record()
    Console(width=140).print(show(sets, figures, recorded))
    print(
        "In brackets: against the figures recorded last." if recorded else "Nothing recorded yet."
    )
    for title, rankers in figures.items():
        if differs(title, rankers[PLAIN]):
            print(f"{title}: {PLAIN} was measured to be {PUBLISHED[title]}", file=sys.stderr)
    if "--record" in sys.argv[1:]:
        write_record(figures)


if __name__ == "__main__":
    main()

"""What the command lists: tools, and the faults of a configuration file.

As data for programs, as tables and pages for people.
"""

import json
from collections.abc import Sized

from clawmode.app.console import ProgramOutput, pretty, print_note
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.signatures import render_input
from clawmode.config.file import Problem, Report
from clawmode.exceptions import ToolLookupError, UnknownTool
from clawmode.text import IN_TEXT, escape
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

# ---- Tools ----


def entry_of(catalog: Catalog, tool: Tool) -> JsonObject:
    """What programs see of a tool without asking, and what the operator should know besides."""
    made = catalog.describe(tool.id, include_mcp=True)
    del made["parameters"]
    made.pop("outputSchema", None)
    return made | {"effect": tool.effect, "idempotent": tool.idempotent}


def page_of(catalog: Catalog, reference: str) -> JsonObject:
    """All about one tool: its entry, how it is called, and its schemas.

    Raises:
        ToolLookupError: No tool has this id or name, or several do.
    """
    tool = catalog.resolve(reference, include_mcp=True)
    names = {id_: f"tools.{name}(" for name, id_ in catalog.convenience().items()}
    called = names.get(tool.id, f"tools.call({json.dumps(tool.id)}, ")
    if tool.source == "mcp":
        called = f"{McpNamespace(catalog.entries).call_of(tool)}("
    signature: JsonObject = {"signature": f"{called}{render_input(tool.parameters)})"}
    return entry_of(catalog, tool) | signature | catalog.describe(tool.id, include_mcp=True)


def list_all(tools: list[Tool], policy: Policy) -> list[JsonObject]:
    """The entries of all tools, by id; those that are denied say why."""
    catalog = Catalog(tools)
    made: list[JsonObject] = []
    for tool in catalog.entries:
        reason = policy.why_denied(tool)
        made.append(entry_of(catalog, tool) | ({"denied": reason} if reason else {}))
    return made


def search(catalog: Catalog, query: str, limit: int) -> JsonObject:
    """What a program's search finds, and the words that are in no tool."""
    found = catalog.search(query, limit, include_mcp=True)
    tools = [catalog.resolve(str(entry["id"]), include_mcp=True) for entry in found]
    return {
        "query": query,
        "tools": [entry_of(catalog, tool) for tool in tools],
        "unmatched": list(catalog.unmatched(query, include_mcp=True)),
    }


def why_not(reference: str, error: ToolLookupError, tools: list[Tool], policy: Policy) -> str:
    """Why there is nothing to show under a reference, for people."""
    try:
        tool = Catalog(tools).resolve(reference, include_mcp=True)
    except ToolLookupError:
        kind = "no tool has" if isinstance(error, UnknownTool) else "several tools have"
        near = f"; the nearest: {', '.join(error.ids)}" if error.ids else ""
        return f"{kind} the id or name {reference!r}{near}"
    return f"{tool.id} is denied: {policy.why_denied(tool)}"


def print_entries(out: ProgramOutput, entries: list[JsonObject], *, denied: bool = False) -> None:
    """A table, one row for each."""
    columns = ["id", "effect", "description"] + ["denied"] * denied
    out.table(columns, [[str(entry.get(key) or "-") for key in columns] for entry in entries])


def print_found(out: ProgramOutput, found: JsonObject) -> None:
    """What a search found, or that it found nothing."""
    entries, unmatched = found["tools"], found["unmatched"]
    assert isinstance(entries, list)
    assert isinstance(unmatched, list)
    if entries:
        print_entries(out, [entry for entry in entries if isinstance(entry, dict)])
        return
    words = f" (in no tool: {', '.join(map(str, unmatched))})" if unmatched else ""
    print_note(f"nothing matches {found['query']!r}{words}")


def print_page(out: ProgramOutput, page: JsonObject) -> None:
    """A page about one tool."""
    said = [str(page["id"]), "", str(page["description"]), "", f"call: {page['signature']}"]
    said += [f"{key}: {page.get(key) or 'not declared'}" for key in ("label", "effect")]
    said += ["", "input:", pretty(page["parameters"])]
    if "outputSchema" in page:
        said += ["", "output:", pretty(page["outputSchema"])]
    out.say("\n".join(escape(text, IN_TEXT) for text in said))


# ---- Configuration ----


def print_report(out: ProgramOutput, report: Report) -> None:
    """What a check of a configuration file has found."""
    if report.path is None:
        out.say("There is no configuration file: everything has its default.")
        return
    rows = [("error", *_row(problem)) for problem in report.errors]
    rows += [("warning", *_row(problem)) for problem in report.warnings]
    out.say(f"{report.path}: {count(report.errors, 'error')}, {count(report.warnings, 'warning')}")
    if rows:
        out.table(["kind", "place", "setting", "what", "expected"], rows)


def count(found: Sized, what: str) -> str:
    """A number of things, in words."""
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _row(problem: Problem) -> tuple[str, str, str, str]:
    place = f"{problem.line}:{problem.column}" if problem.line else "-"
    return place, problem.path or "-", problem.what, problem.expected or "-"

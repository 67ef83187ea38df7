"""Lists of tools, and the problems of a configuration file: as JSON, and as tables and pages."""

import json
from collections.abc import Sized

from clawmode.app.console import ProgramOutput, pretty, print_note
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.schema_types import render_line
from clawmode.config.file import Problem, Report
from clawmode.exceptions import ToolLookupError, UnknownTool
from clawmode.text import IN_TEXT, escape
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

# ---- Tools ----


def entry_of(catalog: Catalog, tool: Tool) -> JsonObject:
    """Returns the entry of a tool in `ALL_TOOLS`, with its effect and whether it is idempotent."""
    entry = catalog.describe(tool.id, include_mcp=True)
    del entry["parameters"]
    entry.pop("outputSchema", None)
    return entry | {"effect": tool.effect, "idempotent": tool.idempotent}


def page_of(catalog: Catalog, reference: str) -> JsonObject:
    """Returns everything about one tool: its entry, its call as a program writes it, its schemas.

    Raises:
        ToolLookupError: No tool has this id or name, or several tools have it.
    """
    tool = catalog.resolve(reference, include_mcp=True)
    names = {id_: f"tools.{name}(" for name, id_ in catalog.convenience().items()}
    called = names.get(tool.id, f"tools.call({json.dumps(tool.id)}, ")
    if tool.source == "mcp":
        called = f"{McpNamespace(catalog.entries).call_of(tool)}("
    signature: JsonObject = {"signature": f"{called}{render_line(tool.parameters)})"}
    return entry_of(catalog, tool) | signature | catalog.describe(tool.id, include_mcp=True)


def list_all(tools: list[Tool], policy: Policy) -> list[JsonObject]:
    """Returns the entries of all tools, sorted by id; `denied` has the reason of denied ones."""
    catalog = Catalog(tools)  # of all tools, not only of those that the policy allows
    entries: list[JsonObject] = []
    for tool in catalog.entries:
        reason = policy.why_denied(tool)
        entries.append(entry_of(catalog, tool) | ({"denied": reason} if reason else {}))
    return entries


def search(catalog: Catalog, query: str, limit: int) -> JsonObject:
    """Searches as a program does; `unmatched` has the words that are in no tool."""
    found = catalog.search(query, limit, include_mcp=True)
    tools: list[JsonValue] = []
    for hit in found:
        tool = catalog.resolve(str(hit["id"]), include_mcp=True)
        tools.append(entry_of(catalog, tool) | ({"weak": True} if "weak" in hit else {}))
    return {
        "query": query,
        "tools": tools,
        "unmatched": list(catalog.unmatched(query, include_mcp=True)),
    }


def why_not(reference: str, error: ToolLookupError, tools: list[Tool], policy: Policy) -> str:
    """Returns why no tool can be shown: no tool has the reference, several have it, or denied."""
    try:
        tool = Catalog(tools).resolve(reference, include_mcp=True)
    except ToolLookupError:
        kind = "no tool has" if isinstance(error, UnknownTool) else "several tools have"
        near = f"; similar ids: {', '.join(error.ids)}" if error.ids else ""
        return f"{kind} the id or name {reference!r}{near}"
    return f"{tool.id} is denied: {policy.why_denied(tool)}"


def print_entries(out: ProgramOutput, entries: list[JsonObject], *, denied: bool = False) -> None:
    """Prints a table with one row per tool."""
    columns = ["id", "effect", "description"] + ["denied"] * denied
    out.table(columns, [[str(entry.get(key) or "-") for key in columns] for entry in entries])


def print_found(out: ProgramOutput, found: JsonObject) -> None:
    """Prints the result of a search, or that there is none."""
    entries, unmatched = found["tools"], found["unmatched"]
    assert isinstance(entries, list)
    assert isinstance(unmatched, list)
    if entries:
        print_entries(out, [entry for entry in entries if isinstance(entry, dict)])
        if all(isinstance(entry, dict) and "weak" in entry for entry in entries):
            print_note(f"only weak matches for {found['query']!r}")
        return
    words = f" (in no tool: {', '.join(map(str, unmatched))})" if unmatched else ""
    print_note(f"nothing matches {found['query']!r}{words}")


def print_page(out: ProgramOutput, page: JsonObject) -> None:
    """Prints a page about one tool."""
    lines = [str(page["id"]), "", str(page["description"]), "", f"call: {page['signature']}"]
    lines += [f"{key}: {page.get(key) or 'not declared'}" for key in ("label", "effect")]
    lines += ["", "input:", pretty(page["parameters"])]
    if "outputSchema" in page:
        lines += ["", "output:", pretty(page["outputSchema"])]
    out.say("\n".join(escape(line, IN_TEXT) for line in lines))


# ---- Configuration ----


def print_report(out: ProgramOutput, report: Report) -> None:
    """Prints the result of a check of a configuration file."""
    if report.path is None:
        out.say("There is no configuration file: all settings have their defaults.")
        return
    rows = [("error", *_row(problem)) for problem in report.errors]
    rows += [("warning", *_row(problem)) for problem in report.warnings]
    out.say(f"{report.path}: {count(report.errors, 'error')}, {count(report.warnings, 'warning')}")
    if rows:
        out.table(["kind", "place", "setting", "what", "expected"], rows)


def count(items: Sized, noun: str) -> str:
    """Returns the number of items with the noun, such as `1 error` or `3 errors`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _row(problem: Problem) -> tuple[str, str, str, str]:
    place = f"{problem.line}:{problem.column}" if problem.line else "-"
    return place, problem.path or "-", problem.what, problem.expected or "-"

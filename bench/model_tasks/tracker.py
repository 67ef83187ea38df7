"""An MCP server with the issues of two projects: `python -m bench.model_tasks.tracker STATE`.

Like many real servers it declares no result types, and returns JSON only as text. The issues are
in the file STATE, which the checks of the tasks read, and which is written anew for each task.
"""

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import TextContent

PAGE = 20
changing = threading.Lock()
server = MCPServer("tracker", instructions="Issues of the projects web and mobile.")


def make_issues() -> dict[str, dict[str, Any]]:
    """Returns the issues at the beginning."""
    chance = random.Random(11)
    return {
        f"ISS-{number}": {
            "key": f"ISS-{number}",
            "project": chance.choice(["web", "mobile"]),
            "title": chance.choice(["crash", "slow page", "typo", "login fails", "wrong total"]),
            "severity": chance.choice(["minor", "minor", "major", "critical"]),
            "state": chance.choice(["open", "open", "closed"]),
            "votes": chance.randrange(0, 90),
            "labels": [],
            "comments": [],
        }
        for number in range(1, 91)
    }


def reply(value: Any) -> list[TextContent]:
    """Encodes a result as text; a list as result type, so that the SDK declares no schema."""
    return [TextContent(type="text", text=json.dumps(value))]


def load() -> dict[str, Any]:
    return json.loads(Path(sys.argv[1]).read_text("utf-8"))


@contextmanager
def change(key: str) -> Iterator[dict[str, Any]]:
    """Saves the changes that the block makes to an issue; an unknown one is an error."""
    with changing:
        issues = load()
        if key not in issues:
            raise ValueError(f"unknown issue {key}")
        yield issues[key]
        save(issues)


def save(issues: dict[str, Any]) -> None:
    # Other calls read the file at the same time, so it is replaced.
    new = Path(f"{sys.argv[1]}.new")
    new.write_text(json.dumps(issues), "utf-8")
    new.replace(sys.argv[1])


@server.tool(structured_output=False)
def list_projects() -> list[TextContent]:
    """List the projects."""
    return reply(["web", "mobile"])


@server.tool(structured_output=False)
def list_issues(
    project: str, state: str | None = None, cursor: str | None = None
) -> list[TextContent]:
    """List the issues of a project, 20 at a time; `next` is the cursor of the next page."""
    rows = [
        row
        for row in load().values()
        if row["project"] == project and state in (None, row["state"])
    ]
    start = int(cursor or 0)
    more = str(start + PAGE) if start + PAGE < len(rows) else None
    return reply({"issues": rows[start : start + PAGE], "next": more})


@server.tool(structured_output=False)
def get_issue(key: str) -> list[TextContent]:
    """Return one issue."""
    issues = load()
    if key not in issues:
        raise ValueError(f"unknown issue {key}")
    return reply(issues[key])


@server.tool(structured_output=False)
def create_issue(project: str, title: str, severity: str = "minor") -> list[TextContent]:
    """Create an issue, and return its key."""
    made = {"project": project, "title": title, "severity": severity, "state": "open"}
    with changing:
        issues = load()
        key = f"ISS-{len(issues) + 1}"
        issues[key] = {"key": key, **made, "votes": 0, "labels": [], "comments": []}
        save(issues)
    return reply({"key": key})


@server.tool(structured_output=False)
def close_issue(key: str, comment: str) -> list[TextContent]:
    """Close an issue with a comment."""
    with change(key) as issue:
        issue["state"] = "closed"
        issue["comments"].append(comment)
    return reply({"key": key, "state": "closed"})


@server.tool(structured_output=False)
def add_label(key: str, label: str) -> list[TextContent]:
    """Add a label to an issue."""
    with change(key) as issue:
        issue["labels"].append(label)
        return reply({"key": key, "labels": issue["labels"]})


@server.tool(structured_output=False)
def comment_issue(key: str, text: str) -> list[TextContent]:
    """Comment on an issue."""
    with change(key) as issue:
        issue["comments"].append(text)
    return reply({"key": key})


if __name__ == "__main__":
    server.run("stdio")

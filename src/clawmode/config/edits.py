"""Edits the lists of MCP servers in files of other programs, as text: comments and layout survive.

`split` moves servers out of a file and puts one entry in their place, `join` is the reverse. Both
work on JSON (with comments) and on TOML. Each result is parsed and compared before it is returned,
so that a file whose layout is not understood is rejected and never damaged.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from clawmode.config import json5
from clawmode.exceptions import ConfigurationError
from clawmode.types import dataclass

Syntax: TypeAlias = Literal["json", "toml"]
Path: TypeAlias = tuple[str, ...]
"""The keys that lead to the object with the servers."""

_COMMENT_TO_END_OF_LINE = re.compile(
    r"[ \t]*(?://[^\r\n]*|/\*(?:(?!\*/)[^\r\n])*\*/[ \t]*)(?=\r?\n)"
)
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_COMMENTS_ABOVE = re.compile(r"(?:^[ \t]*#.*\n)+\Z", re.MULTILINE)


def servers_in(text: str, syntax: Syntax, path: Path, name: str) -> dict[str, Any]:
    """Returns the entries of the servers; empty if the file has none.

    Args:
        text: The content of the file.
        syntax: The language of the file.
        path: Where the servers are.
        name: The name of the file in error messages.

    Raises:
        ConfigurationError: The file is not valid. The message does not quote the file.
    """
    return servers_of(parse(text, syntax, name), path)


def servers_of(data: Any, path: Path) -> dict[str, Any]:
    """Returns the entries of the servers in a parsed file; empty if it has none."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def split(
    text: str, syntax: Syntax, path: Path, names: Collection[str], own: Mapping[str, Any]
) -> tuple[str, str]:
    """Moves servers out of a file.

    Args:
        text: The content of the file.
        syntax: The language of the file.
        path: Where the servers are.
        names: The servers to move.
        own: The entries that replace them, by name.

    Returns:
        The new content of the file, and the content of a file that has only the moved servers.

    Raises:
        ConfigurationError: The servers cannot be moved without damage to the file.
    """
    if syntax == "json":
        section = _Section.find(text, path)
        moved = [member for member in section.members if member.key in names]
        kept = [member for member in section.members if member.key not in {*names, *own}]
        rest = section.render(kept + section.new_members(own))
        taken = replace(section, before="", after="").render(moved)
        for key in reversed(path):
            taken = f"\n{json.dumps(key)}: {{{taken}}}\n"
        taken = f"{{{taken}}}\n"
    else:
        rest, taken = _split_tables(text, path, names)
        for name, entry in own.items():
            lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
            table = "\n".join([f"[{'.'.join(path)}.{name}]", *lines])
            rest = f"{rest.rstrip()}\n\n{table}\n".lstrip()
    entries = servers_in(text, syntax, path, "")
    remaining = {key: entry for key, entry in entries.items() if key not in names}
    _verify(rest, syntax, path, remaining | dict(own), _without(text, syntax, path))
    _verify(taken, syntax, path, {key: entries[key] for key in names})
    return rest, taken


def join(text: str, syntax: Syntax, path: Path, moved: str, remove: Collection[str] = ()) -> str:
    """Moves servers back into a file, and removes others.

    Servers that the file has already are left as they are.

    Args:
        text: The content of the file.
        syntax: The language of both files.
        path: Where the servers are, in both files.
        moved: The content of the file with the servers.
        remove: The servers to remove.

    Raises:
        ConfigurationError: The servers cannot be moved without damage to the file.
    """
    entries = servers_in(text, syntax, path, "")
    kept = {key: entry for key, entry in entries.items() if key not in remove}
    added = servers_in(moved, syntax, path, "")
    missing = {key: entry for key, entry in added.items() if key not in kept}
    if syntax == "json":
        section = _Section.find(text, path)
        coming = [it for it in _Section.find(moved, path).members if it.key in missing]
        staying = [it for it in section.members if it.key in kept]
        result = section.render(staying + coming)
    else:
        rest, _ = _split_tables(text, path, [*remove])
        _, tables = _split_tables(moved, path, [*missing])
        result = f"{rest.rstrip()}\n\n{tables}".lstrip() if rest.strip() else tables
    _verify(result, syntax, path, kept | missing, _without(text, syntax, path))
    return result


def parse(text: str, syntax: Syntax, name: str) -> Any:
    """Returns the data of a file. Errors do not quote the file."""
    if syntax == "json":
        try:
            return json5.parse(text, name).value if text.strip() else {}
        except ConfigurationError as error:
            # The second line of the message quotes the file, and may contain a token.
            message = str(error).partition("\n")[0]
            raise ConfigurationError(message, line=error.line, column=error.column) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at .*\)", str(error))
        raise ConfigurationError(f"{name} is not valid TOML {place[0] if place else ''}") from None


def _without(text: str, syntax: Syntax, path: Path) -> Any:
    """Returns the parsed file without its servers."""
    data: Any = parse(text, syntax, "")
    holder = data
    for key in path[:-1]:
        holder = holder.get(key, {})
    holder.pop(path[-1], None)
    return data


def _verify(
    text: str, syntax: Syntax, path: Path, servers: Mapping[str, Any], rest: Any = None
) -> None:
    """Raises an error unless an edited text has exactly these servers, and this rest if given."""
    try:
        same_rest = rest is None or _without(text, syntax, path) == rest
        if same_rest and servers_in(text, syntax, path, "") == servers:
            return
    except ConfigurationError:
        pass  # reported below: the fault is ours, and not the user's
    raise ConfigurationError(
        f"the servers in {'.'.join(path)} cannot be moved without changing the rest of the file; "
        "move them by hand"
    )


# ---- JSON ----


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object, with the comments that belong to it.

    Attributes:
        lead: White space and comments before the key.
        body: From the key to the end of the value.
        tail: White space and comments after the value, until the end of the line.
    """

    key: str
    lead: str
    body: str
    tail: str


@dataclass(frozen=True, slots=True)
class _Section:
    """An object of a JSON text, cut into its members.

    Attributes:
        before: The text up to the opening brace, the brace included.
        closing: White space and comments after the last member.
        after: The text from the closing brace on.
    """

    before: str
    members: list[_Member]
    closing: str
    after: str

    @classmethod
    def find(cls, text: str, path: Path) -> "_Section":
        """Finds the object at a path of a valid text."""
        starts: list[int] = []  # of the members: after the brace or the comma
        keys: list[tuple[str, int]] = []
        ends: list[int] = []  # of the values
        opened = last_end = 0
        for token, place, begins in json5.walk(text):
            mark = token.group()
            if place == path and mark == "{" and not opened:
                opened = token.end()
                starts.append(opened)
            elif opened and place[:-1] == path:
                if begins:
                    keys.append((str(place[-1]), token.start()))
                elif mark in (",", "}"):
                    if len(ends) < len(keys):
                        ends.append(last_end)
                    if mark == "}":
                        return cls._cut(text, starts, keys, ends, token.start())
                    starts.append(token.end())
            last_end = token.end()
        raise ConfigurationError(f"there is no object {'.'.join(path)} in the file")

    @classmethod
    def _cut(
        cls,
        text: str,
        starts: list[int],
        keys: list[tuple[str, int]],
        ends: list[int],
        closed: int,
    ) -> "_Section":
        members: list[_Member] = []
        place = starts[0]
        for number, ((key, begin), end) in enumerate(zip(keys, ends, strict=True)):
            follows = starts[number + 1] if number + 1 < len(starts) else None
            tail, after = "", end
            if follows is not None:
                tail, after = text[end : follows - 1], follows
            if same_line := _COMMENT_TO_END_OF_LINE.match(text, after):
                tail, after = tail + same_line[0], same_line.end()
            members.append(_Member(key, text[place:begin], text[begin:end], tail))
            place = after
        return cls(text[: starts[0]], members, text[place:closed], text[closed:])

    def new_members(self, entries: Mapping[str, Any]) -> list[_Member]:
        """Returns members for new entries, indented like the others."""
        lead = self.members[0].lead if self.members else ""
        line, newline, indent = lead.rpartition("\n")
        indent = indent if newline and not indent.strip() else "    "
        end = "\r\n" if line.endswith("\r") else "\n"
        made: list[_Member] = []
        for key, entry in entries.items():
            body = f"{json.dumps(key)}: {json.dumps(entry, indent=2)}"
            made.append(_Member(key, end + indent, body.replace("\n", end + indent), ""))
        return made

    def render(self, members: list[_Member]) -> str:
        """Returns the text with these members in the object."""
        made = [self.before]
        for number, member in enumerate(members):
            comma = "," if number + 1 < len(members) else ""
            made += [member.lead, member.body, comma, member.tail]
            following = members[number + 1].lead if number + 1 < len(members) else self.closing
            if "//" in member.tail and not following.lstrip(" \t\r").startswith("\n"):
                made.append("\n")  # the comment must not swallow what comes next
        closing = self.closing
        if members and "\n" in members[-1].lead and "\n" not in closing:
            closing = "\n" + closing
        return "".join([*made, closing, self.after])


# ---- TOML ----


def _chunks(text: str) -> Iterator[tuple[Path, str]]:
    """Yields the tables of a valid TOML text: the path of each, and its text with the header."""
    cuts = [0]
    for match in _TABLE.finditer(text):
        start = match.start()
        if above := _COMMENTS_ABOVE.search(text, cuts[-1], start):
            start = above.start() if _is_toml(text[cuts[-1] : above.start()]) else start
        # A line of a list or of a text with several lines may look like a header too.
        if start > cuts[-1] and _is_toml(text[cuts[-1] : start]):
            cuts.append(start)
    for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
        chunk = text[start:end]
        header = next((line for line in chunk.splitlines() if _TABLE.match(line)), "")
        yield _path_of(header), chunk


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _path_of(header: str) -> Path:
    if not _is_toml(header):
        return ()
    path: list[str] = []
    found: Any = tomllib.loads(header)
    while found:
        found = found[0] if isinstance(found, list) else found
        ((key, found),) = found.items() if found else (("", {}),)
        path.append(key)
    return tuple(path)


def _split_tables(text: str, path: Path, names: Collection[str]) -> tuple[str, str]:
    """Returns a text without the tables of some servers, and these tables."""
    rest: list[str] = []
    taken: list[str] = []
    for place, chunk in _chunks(text):
        depth = len(path)
        is_taken = place[:depth] == path and len(place) > depth and place[depth] in names
        (taken if is_taken else rest).append(chunk)
    return "".join(rest), "".join(taken)

"""Untrusted text made safe to show: escaped, on one line, shortened.

Names, descriptions, errors and output may come from a guest, a model or an MCP server. Shown as
they are, such texts could move a cursor, hide characters or fill a screen.
"""

import difflib
import json
import re
from collections.abc import Iterable

# Characters that a terminal acts on or does not show: control, format and surrogate characters, the
# two line separators, everything that Unicode calls Default_Ignorable_Code_Point, blank glyphs, and
# every space but U+0020. With any of these left in, two commands could look alike in a question.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)

IN_TEXT = "\n\t\xa0\u2002\u2003\u2007\u2009\u200a\u200c\u200d\u202f\u3000\ufe0e\ufe0f"
"""For `escape(keep=…)`: what running text needs: line breaks, spaces, and joiners of letters and
emoji."""


def escape(text: str, keep: str = "") -> str:
    r"""Escapes every character that a terminal would act on or not show, such as `\u001b`.

    Args:
        text: Any text; lone surrogates are escaped too.
        keep: Characters that are not escaped.
    """

    def escaped(found: re.Match[str]) -> str:
        code = ord(found[0])
        if found[0] in keep:
            return found[0]
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return _INVISIBLE.sub(escaped, text)


def one_line(text: str, limit: int) -> str:
    """Escapes the text for a terminal, on one line of at most `limit` characters."""
    start = text[: 4 * limit]  # never more work than the result is worth
    line = escape(" ".join(start.split()))
    return shorten(line if len(start) == len(text) else f"{line}…", limit)


def plain_line(text: str, limit: int) -> str:
    """Puts the text on one line of at most `limit` characters, with a space for unprintable ones.

    Unlike `one_line` it keeps what joins letters and emoji visibly: for prompts and source code.
    """
    start = text[: 4 * limit]
    line = " ".join(printable(start, " ").split())
    return shorten(line if len(start) == len(text) else f"{line}…", limit)


def printable(text: str, instead: str = "\ufffd", keep: str = "") -> str:
    """Replaces every unprintable character but those in `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else instead for char in text)


def shorten(text: str, limit: int, end: str = "…") -> str:
    """Cuts the text to at most `limit` characters, `end` included."""
    if len(text) <= limit:
        return text
    return f"{text[: max(limit - len(end), 0)]}{end}"[:limit]


def truncate(text: str, limit: int) -> str:
    """Cuts the text after `limit` characters, and says how many more there are."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


def quote(text: str, limit: int = 120) -> str:
    """Quotes the text for an error message: shortened, unprintable characters escaped."""
    return repr(shorten(text, limit))


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by question marks."""
    return text.encode("utf-8", "replace").decode()


# ---- Values in messages ----


def show(value: object) -> str:
    """Returns a value as JSON for a message, shortened, without control characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"  # Python does not print an integer of over 4,300 digits
    return shorten(json.dumps(value, default=repr), 60, "...")


def kind_of(value: object) -> str:
    """Describes a value without quoting it: the value may contain a secret."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if value == "" or value == []:
        return "an empty string" if value == "" else "an empty list"
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """Returns the known name that is most similar to a misspelt one; empty if none is similar."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else ""

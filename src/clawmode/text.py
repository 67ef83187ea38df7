"""Untrusted text made safe to show: escaped, on one line, shortened.

Names, descriptions, errors and output may come from a guest, a model or an MCP server. Shown as
they are, such texts could move a cursor, hide characters or fill a screen.
"""

import base64
import difflib
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote as quote_url

from clawmode.types import JsonValue, change_texts

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


def without_escaped_surrogates(value: JsonValue, text: str) -> JsonValue:
    """Replaces the lone surrogates in a JSON value: neither files nor databases can store them.

    Args:
        value: The value.
        text: The JSON. It is valid UTF-8, so a lone surrogate can only come from an escape.
    """
    if "\\u" not in text:
        return value
    whole = json.dumps(value, ensure_ascii=False)
    clean = without_surrogates(whole)
    return value if clean == whole else json.loads(clean)


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


MIN_CLIP = 24
"""Characters that a text in a clipped value keeps, so that a reader recognizes the text."""


def clip(value: JsonValue, limit: int, least: int = MIN_CLIP) -> JsonValue:
    """Shortens a JSON value to JSON of about `limit` characters, and keeps its shape.

    Names and texts keep at least `least` characters.

    Long texts end with `…`; lists and objects say how many items or members were left out. The work
    depends on the limit, not on the size of the value.
    """
    if isinstance(value, str):
        return shorten(value, max(limit, least))
    if isinstance(value, int) and value.bit_length() > 128:
        return show(value)
    if not value or isinstance(value, int | float):
        return value
    members = value if isinstance(value, dict) else dict(enumerate(value[:limit]))
    made: dict[str, JsonValue] = {}
    for number, (key, item) in enumerate(members.items()):
        rest = len(value) - number
        if limit < MIN_CLIP:
            made["…"] = f"… {rest} more"
            break
        name = shorten(str(key), least)
        # A member takes at most half of the room, if others need some too.
        made[name] = clip(item, limit // min(rest, 2) - len(name) - 6, least)
        limit -= len(name) + len(json.dumps(made[name], ensure_ascii=False)) + 6
    return made if isinstance(value, dict) else list(made.values())


def kind_of(value: object) -> str:
    """Describes a value without quoting it: the value may contain a secret."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if value == "" or value == []:
        return "an empty string" if value == "" else "an empty list"
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def show_plain(value: object, choices: Iterable[object] = ()) -> str:
    """Returns a value as JSON, but not a text that may be a key or a password.

    A text is shown if it is very short, a word, a number with a unit, or a misspelt choice.
    """
    if (
        isinstance(value, str)
        and not _PLAIN.fullmatch(value)
        and not nearest(value, map(str, choices))
    ):
        return kind_of(value)
    return show(value)


_PLAIN = re.compile(r".{0,3}|[A-Za-z]{0,12}|[-+.\d]{1,10} ?[A-Za-z%]{0,3}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """Returns the known name that is most similar to a misspelt one; empty if none is similar."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else ""


# ---- Known secrets ----

HIDDEN = "***"
MIN_SECRET = 4
"""Characters. Shorter secrets are not redacted: they occur by chance in too many texts."""

MIN_SECRET_LINE = 12
MAX_EMBEDDED = 3
"""Levels of JSON inside of JSON strings that are parsed."""

CUT = "…"
"""What `clawmode.text` writes where it cuts a text: the beginning of a secret may be before it."""


class KnownSecrets:
    """Redacts values that are known to be secret, and nothing else.

    For texts that people and programs keep using: text that only looks like a secret stays. The
    beginning of a secret is redacted too if the text was cut inside of the secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = _forms(secrets)
        self._by_first: dict[str, list[str]] = {}
        for form in self._forms:
            self._by_first.setdefault(form[0], []).append(form)
        self._joined = CUT.join(self._forms)

    def are_in(self, text: str) -> bool:
        """True if the text, which may be JSON, holds a secret, or a part of one before a cut."""
        return any(form in text for form in self._forms) or any(self._halves(text))

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        made, done = list[str](), 0
        for start, end in self._halves(text):
            made += [text[done:start], HIDDEN]
            done = end
        return "".join([*made, text[done:]]) if made else text

    def _halves(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields where a text has the beginning of a secret, right before a cut."""
        longest = len(self._forms[0]) if self._forms else 0
        before, end = 0, text.find(CUT) if longest else -1
        while end >= 0:
            # Most cuts are dismissed at once: no secret has the characters before them.
            last = text[max(end - MIN_SECRET, before) : end]
            if len(last) == MIN_SECRET and last in self._joined:
                length = self.partial_length(text[max(end - longest, before) : end])
                if length >= MIN_SECRET:
                    yield end - length, end
            before, end = end + 1, text.find(CUT, end + 1)

    def value(self, value: JsonValue) -> JsonValue:
        """Redacts a JSON value; numbers stay."""
        return change_texts(value, self.text)

    def partial_length(self, text: str) -> int:
        """Returns how many characters at the end of a text may begin a secret.

        A stream holds these characters back until the next chunk shows whether they do.
        """
        # Reading starts at a position near the end that is not inside of a secret.
        longest = len(self._forms[0]) if self._forms else 0
        start = len(text) - 2 * longest
        while start > 0 and self.are_in(text[max(start - longest + 1, 0) : start + longest - 1]):
            start -= longest
        start = max(start, 0)
        while start < len(text):
            forms = self._by_first.get(text[start], ())
            left = len(text) - start
            if any(len(form) > left and form.startswith(text[start:]) for form in forms):
                return left
            # A secret that begins inside of a whole secret is redacted with it.
            start += next((len(form) for form in forms if text.startswith(form, start)), 1)
        return 0


def _forms(secrets: Iterable[str]) -> list[str]:
    """Returns the forms of secrets in texts: plain, in JSON, in a URL, in base64, by line."""
    made: set[str] = set()
    for secret in (each.strip() for each in secrets):
        if len(secret) < MIN_SECRET or not secret.strip("*"):
            continue
        encoded = secret.encode("utf-8", "replace")
        made |= {
            secret,
            quote_url(encoded, safe=""),
            base64.b64encode(encoded).decode().rstrip("="),
        }
        for ascii_only in (True, False):
            inner = secret
            for _ in range(MAX_EMBEDDED):
                inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
                made.add(inner)
        lines = secret.splitlines()
        if len(lines) > 1:
            made.update(line for line in lines if len(line) >= MIN_SECRET_LINE)
    # Longest first: one secret may be part of another.
    return sorted(made, key=lambda form: (-len(form), form))

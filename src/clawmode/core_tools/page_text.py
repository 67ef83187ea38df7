"""Extracts the text of a web page, plain or with simple Markdown.

Pages can be hostile. The standard library's parser, and most regular expressions for HTML, take
quadratic time for some pages. So this module is written by hand, and visits each character a
bounded number of times. The price is small: a `>` in an attribute ends its tag.
"""

import html
import re
from dataclasses import field
from urllib.parse import urljoin

from clawmode.types import dataclass

MAX_TITLE = 300
MAX_DEPTH = 100

_MARKUP = re.compile(r"<(?=[A-Za-z!?/])")
_NAME = re.compile(r"/?([A-Za-z][A-Za-z0-9:-]{0,40})")
_HREF = re.compile(
    r"""(?i)\bhref\s{0,8}=\s{0,8}(?:"([^"]{0,2000})"|'([^']{0,2000})'|([^\s"'>]{1,2000}))"""
)
_SPACES = re.compile(r"[ \t\r\n\f\v]+")
_BLANK_LINES = re.compile(r"\n{3,}")

SILENT = frozenset(
    "script style noscript template svg math iframe object canvas head select".split()
)
"""Elements whose content is skipped, except for the title in `head`."""
RAW = frozenset({"script", "style", "title", "textarea", "iframe", "noscript"})
"""Elements that cannot contain other tags."""
BLOCKS = frozenset(
    "address article aside blockquote body br dd details div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section summary table tbody "
    "tfoot thead tr ul".split()
)
APART = frozenset("h1 h2 h3 h4 h5 h6 p ul ol table pre blockquote article section hr".split())
"""Blocks that are surrounded by blank lines."""


@dataclass(frozen=True, slots=True)
class Page:
    """Title and text of a page."""

    title: str
    text: str


def read_page(source: str, *, base: str = "", markdown: bool = False) -> Page:
    """Extracts title and text of a page.

    Args:
        source: The HTML of the page.
        base: The page's address, to resolve relative links.
        markdown: Whether headings, code blocks and links are marked as Markdown.
    """
    return _Reader(source, base, markdown).run()


@dataclass(slots=True)
class _Reader:
    source: str
    base: str
    markdown: bool
    title: str = ""
    parts: list[str] = field(default_factory=list[str])
    link: tuple[int, str] | None = None
    silent: str = ""
    pre: int = 0
    _absent: set[str] = field(default_factory=set[str])
    _lower: str = ""

    def run(self) -> Page:
        self._lower = self.source.lower()
        # The lower case of some letters has another length.
        if len(self._lower) != len(self.source):
            self._lower = self.source
        at = 0
        while at < len(self.source):
            start = _MARKUP.search(self.source, at)
            if start is None:
                self._add_text(self.source[at:])
                break
            self._add_text(self.source[at : start.start()])
            at = self._markup(start.start())
        text = _BLANK_LINES.sub("\n\n", "".join(self.parts))
        lines = (line.rstrip() for line in text.split("\n"))
        return Page(self.title, "\n".join(lines).strip())

    def _find(self, what: str, at: int) -> int:
        """Returns the next position of a text. A text that is absent is never searched again."""
        if what in self._absent:
            return -1
        found = self._lower.find(what, at)
        if found < 0:
            self._absent.add(what)
        return found

    def _markup(self, at: int) -> int:
        """Handles a comment or tag at a `<`, and returns the position after it."""
        if self.source.startswith("<!--", at):
            end = self._find("-->", at + 4)
            return len(self.source) if end < 0 else end + 3
        end = self._find(">", at)
        if end < 0:
            return len(self.source)
        name = _NAME.match(self.source, at + 1)
        return end + 1 if name is None else self._tag(name[1].lower(), at, end)

    def _tag(self, name: str, at: int, end: int) -> int:
        if self.source[at + 1] == "/":
            if name == self.silent:
                self.silent = ""
            elif not self.silent:
                self._close(name)
            return end + 1
        if name == "title" and not self.title:
            start, close = end + 1, self._find("</title", end + 1)
            if close < 0:
                return start
            text = html.unescape(self.source[start : min(close, start + 4 * MAX_TITLE)])
            self.title = _SPACES.sub(" ", text).strip()[:MAX_TITLE]
            return close
        if name in RAW and name != "noscript":
            return self._raw(name, end + 1)
        if name == "body":
            self.silent = ""  # ends a head that was not closed
        if self.silent:
            return end + 1
        if name in SILENT:
            self.silent = name if self.source[end - 1] != "/" else ""
        else:
            self._open(name, at, end)
        return end + 1

    def _raw(self, name: str, at: int) -> int:
        end = self._find(f"</{name}", at)
        if end < 0:
            return len(self.source) if name in SILENT else at
        if name == "textarea" and not self.silent:
            self._add_text(self.source[at:end])
        return end

    # ---- Output ----

    def _add_text(self, text: str) -> None:
        if self.silent or not text:
            return
        text = html.unescape(text)
        if self.pre:
            self.parts.append(text)
            return
        text = _SPACES.sub(" ", text)
        if text[0] == " " and (not self.parts or self.parts[-1][-1:] in " \n"):
            text = text[1:]
        if text:
            self.parts.append(text)

    def _break(self, name: str) -> None:
        if not self.parts:
            return
        wanted = 2 if name in APART else 1
        have = len(self.parts[-1]) - len(self.parts[-1].rstrip("\n"))
        if have < wanted:
            self.parts.append("\n" * (wanted - have))

    def _open(self, name: str, at: int, end: int) -> None:
        if name in BLOCKS:
            self._break(name)
        if name == "pre":
            self.pre = min(self.pre + 1, MAX_DEPTH)
        elif name in ("td", "th"):
            self.parts.append("| " if not self.parts or self.parts[-1].endswith("\n") else " | ")
        elif name == "li":
            self.parts.append("- ")
        if not self.markdown:
            return
        if name in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.parts.append("#" * int(name[1]) + " ")
        elif name == "pre":
            self.parts.append("```\n")
        elif name == "a":
            # Only the last open link is kept: a stack of links could take quadratic time.
            self.link = (len(self.parts), self._target(at, end))

    def _close(self, name: str) -> None:
        if name == "pre" and self.pre:
            self.pre -= 1
            if self.markdown:
                self.parts.append("\n```")
        elif name == "a" and self.link is not None:
            start, target = self.link
            self.link = None
            words = "".join(self.parts[start:]).strip()
            if words and target and "\n" not in words:
                # A bracket would let a page end the link early.
                words = words.replace("[", "(").replace("]", ")")
                target = target.replace(")", "%29").replace(" ", "%20")
                self.parts[start:] = [f"[{words}]({target})"]
        if name in BLOCKS:
            self._break(name)

    def _target(self, at: int, end: int) -> str:
        found = _HREF.search(self.source, at, min(end, at + 4_000))
        if found is None:
            return ""
        try:
            target = urljoin(
                self.base, html.unescape(next(filter(None, found.groups()), "")).strip()
            )
        except ValueError:
            return ""
        return target if target.startswith(("http://", "https://")) else ""

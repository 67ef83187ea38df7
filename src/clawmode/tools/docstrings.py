"""Parses docstrings into a description of the function and of each parameter.

Google's `Args:` and reST's `:param name:` are parsed; everything else is description.
"""

import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"(Args|Arguments|Parameters|Params):")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?:\s*(.*)")
_FIELD = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+):\s*(.*)")
_TYPE = re.compile(r":type\s+\w+:")


@dataclass(slots=True)
class Docstring:
    """The description of a function, and those of its parameters by name."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def parse(docstring: str | None) -> Docstring:
    """Parses a docstring whose indentation `inspect.cleandoc` has removed."""
    lines = (docstring or "").splitlines()
    kept: list[str] = []
    parsed = Docstring()
    while lines:
        line = lines.pop(0)
        if _SECTION.fullmatch(line.rstrip()):
            _read_section(_take_indented(lines), parsed.parameters)
        elif found := _FIELD.match(line):
            parsed.parameters[found[1]] = _join([found[2], *_take_indented(lines)])
        elif _TYPE.match(line):
            _take_indented(lines)
        else:
            kept.append(line)
    parsed.text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return parsed


def _take_indented(lines: list[str]) -> list[str]:
    """Removes and returns the lines before the next one that is not indented."""
    ends = (at for at, line in enumerate(lines) if line and not line[0].isspace())
    count = next(ends, len(lines))
    taken = lines[:count]
    del lines[:count]
    return taken


def _read_section(lines: list[str], parameters: dict[str, str]) -> None:
    """Reads the entries of a section. Lines with deeper indentation continue an entry."""
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    texts: list[str] = []
    name = ""
    for line in lines:
        found = _ENTRY.match(line[indent:])
        if found:
            name, texts = found[1], [found[2]]
        else:
            texts.append(line)
        if name:
            parameters[name] = _join(texts)


def _join(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())

"""Text as PostgreSQL can keep it, which allows neither NUL nor lone surrogates."""

from collections.abc import Iterable


def escaped(text: str) -> str:
    """Returns text as PostgreSQL can keep it: without NUL and lone surrogates."""
    if text.isascii() and "\0" not in text and "\\" not in text:
        return text
    plain = text.replace("\\", "\\\\").replace("\0", "\\0")
    return plain.encode("utf-8", "backslashreplace").decode("utf-8")


def unescaped(text: str) -> str:
    """Returns the text that `escaped` was given."""
    if "\\" not in text:
        return text
    parts = text.split("\\\\")
    return "\\".join(_unescape_part(part) for part in parts)


def _unescape_part(part: str) -> str:
    first, *rest = part.split("\\")
    for piece in rest:
        first += "\0" + piece[1:] if piece[:1] == "0" else chr(int(piece[1:5], 16)) + piece[5:]
    return first


def texts(values: Iterable[str]) -> list[str]:
    """Returns several texts as PostgreSQL can keep them."""
    return [escaped(value) for value in values]

"""Words of texts and their terms: split identifiers, stop words, and a light English stemmer."""

import re
import unicodedata
from functools import lru_cache
from itertools import chain, pairwise

MAX_WORD_CHARS = 64
FORM_MARK = "="  # in no word

STOP_WORDS = frozenset(
    "a an and any are as at be by can could do does for from has have how i if in into is it its "
    "let me my of on or our please s should so some t that the their them then these they this "
    "those to us want was we were what when which will with would you your".split()
)

_WORD = re.compile(r"[^\W_]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")  # the same for plain text, twice as fast
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^A-Za-z0-9]+")


def split_words(text: str) -> list[str]:
    """Returns the words of a text, without accents; `snake_case` is two, `camelCase` one."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    letters = [c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)]
    return _WORD.findall(unicodedata.normalize("NFC", "".join(letters)))


def split_identifier(word: str) -> list[str]:
    """Returns the `camelCase` parts of a word, in lower case, without stop words."""
    parts: list[str] = _PART.findall(word)
    return [small for part in parts if (small := part.casefold()) not in STOP_WORDS]


def terms_of(word: str) -> tuple[str, ...]:
    """Returns the terms of a word: the stems of its `camelCase` parts, and of the whole word.

    With the whole word, the query `github` finds `GitHub`.
    """
    if word.isascii() and (word.isdecimal() or (word.isalpha() and word[1:].islower())):  # most
        return stems_of(word.lower())
    parts: list[str] = _PART.findall(word)
    wanted = parts if len(parts) == 1 else [*parts, word]
    return tuple(dict.fromkeys(chain.from_iterable(stems_of(p.casefold()) for p in wanted)))


def terms_and_forms(word: str) -> list[str]:
    """Returns the terms of a word and its unstemmed forms, so that exact forms rank higher."""
    terms = terms_of(word)
    forms = [word.casefold()] if terms else []
    if len(terms) > 1:
        forms += split_identifier(word)
    return [*terms, *(FORM_MARK + form[:MAX_WORD_CHARS] for form in forms)]


def stems_of(part: str) -> tuple[str, ...]:
    """Returns the terms of one part, in lower case: its stem, or the pairs of its characters."""
    if part in STOP_WORDS:
        return ()
    if part.isascii():
        short = part[:MAX_WORD_CHARS]
        return (stem(short) if part.isalpha() else short,)
    if part < "\u3040" or len(part) < 3:
        return (part,)
    return tuple(map("".join, pairwise(part)))  # Chinese and Japanese have no spaces between words


# ---- The stemmer ----
#
# It is light on purpose: endings that often change the meaning stay (`custom`, `customer`).

_VOWEL = re.compile(r"[aeiouy]")
_SHORT = re.compile(r"[^aeiouy]*[aeiouy][^aeiouwxy]")  # `rat` and `us`: ends in a lost `e`
_IRREGULAR = {"embed": "embed", "embeds": "embed", "news": "news"}
_DERIVATIONS = (
    ("ization", "iz"),
    ("izer", "iz"),
    ("ysis", "ys"),
    ("yzer", "ys"),
    ("yze", "ys"),
    ("yz", "ys"),
    ("ator", "at"),
    ("ion", ""),
    ("ly", ""),
)
_DERIVED = tuple(ending for ending, _ in _DERIVATIONS)


@lru_cache(maxsize=8192)  # names of tools repeat the same few words
def stem(word: str) -> str:
    """Removes English endings: `creates`, `created`, `creating` and `creation` are one term."""
    if len(word) < 3:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("sses", "ies")) else word[:-1]
    word = _cut_derivation(_cut_tense(word))
    if len(word) < 4:
        return word
    if word.endswith("e") and not _SHORT.fullmatch(word[:-1]):
        return word[:-1]
    return f"{word[:-1]}i" if word.endswith("y") and word[-2] not in "aeiou" else word


def _cut_tense(word: str) -> str:
    for ending in ("ing", "ed"):
        root = word.removesuffix(ending)
        if root != word and len(root) > 1 and _VOWEL.search(root) and not word.endswith("eed"):
            if root[-1] == root[-2] and root[-1] not in "lsz":
                return root[:-1]  # `plann` becomes `plan`
            return f"{root}e" if _SHORT.fullmatch(root) else root  # `rat` becomes `rate`
    return word


def _cut_derivation(word: str) -> str:
    for ending, replacement in _DERIVATIONS if word.endswith(_DERIVED) else ():
        if word.endswith(ending):
            root = word.removesuffix(ending) + replacement
            return root if len(root) > 4 else word
    return word

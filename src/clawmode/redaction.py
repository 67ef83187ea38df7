"""Redacts secrets in texts and JSON values, before anybody but their owner sees them.

Secrets are found in three ways: by their value, if it is known; by the name before them, such as
`password=`; and by the shape that API keys have. A password that matches none of these looks like
any other word, and is not redacted.

Texts are hostile, so every pattern must take time linear in the text. Repetitions are possessive
(`++`) or bounded, or their lookbehind keeps them from starting inside of a previous match. This is
why the patterns are written by hand: secret scanners are made for source files and trust their
input.
"""

import contextlib
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from clawmode.text import CUT, HIDDEN, MAX_EMBEDDED, KnownSecrets, clip
from clawmode.types import JsonValue

WORKSPACE = "$WORKSPACE_DIR"
HOME = "~"

MAX_DEPTH = 64
MAX_NAME = 100
CLIP_READ = MAX_NAME + 20
"""Characters of each name, and at least of each text, that `Redactor.clip` reads."""
MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 4_096, 64

Secrecy: TypeAlias = Literal["", "texts", "all"]
"""What is redacted below a name: nothing, texts but not numbers, or both."""


# ---- Names ----

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_SECRET_WORDS = frozenset(
    "token jwt otp secret secrets password passwords passwd passphrase passcode credential "
    "credentials cookie cookies authorization bearer".split()
)
_SECRET_LAST_WORDS = frozenset({"auth", "pass", "pwd"})
_SECRET_ENDINGS = (
    *("token", "secret", "password", "passwd", "passphrase", "authorization", "cookie"),
    *("credential", "credentials", "apikey", "apikeys", "privatekey", "accesskey", "secretkey"),
    *("signingkey", "encryptionkey", "masterkey", "sharedkey", "accountkey", "accesskeyid"),
    *("connectionstring",),
)
_HARMLESS_LAST_WORDS = frozenset(
    "count counts limit limits budget usage type types kind mode file path name ttl expiry expires "
    "url uri endpoint length size policy source status required enabled profile".split()
)
_WHOLE_LINE = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie"})
_QUERY_NAMES = frozenset({"key", "sig", "signature", "code", "auth", "xamzsignature"})


def secrecy_of(name: str) -> Secrecy:
    """Returns what is redacted in the value of a member or variable of this name."""
    if len(name) > MAX_NAME and name.endswith(CUT):
        return "all"  # the telling word is often the last one
    return _secrecy_of(name[-MAX_NAME:])


@functools.lru_cache(maxsize=4_096)
def _secrecy_of(name: str) -> Secrecy:
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return ""
    if not _SECRET_WORDS.isdisjoint(words) or "".join(words).endswith(_SECRET_ENDINGS):
        return "all"
    if words[-1] in _SECRET_LAST_WORDS and words != ["pwd"]:  # alone, that is a folder
        return "all"
    return "texts" if "tokens" in words else ""


# ---- Values that are not secrets ----

_PLAIN_WORDS = frozenset(
    "string number boolean bool integer object array null undefined true false none any unknown "
    "str int float optional required void never await".split()
)
_REFERENCE = re.compile(r"\$\{\w{1,100}\}|\$[A-Z][A-Z0-9_]{1,100}")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?")


def _mask(text: str, secrecy: Secrecy) -> str:
    """Returns the replacement of a secret. Types, variable references and "" are not secrets."""
    if not text or text.lower() in _PLAIN_WORDS or _REFERENCE.fullmatch(text):
        return text
    return text if secrecy == "texts" and _NUMBER.fullmatch(text) else HIDDEN


# ---- Shapes ----

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_USER_INFO = re.compile(r"""://[^\s/"'<>?#\\]+@""")
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows)/)(?:[\w/-]{10,}+|[\w/-]{1,9}+(?=…))"
)
_LOGIN = re.compile(r"""(?<!\S)(-u|--user)([ \t=]{1,8}["']?)[^\s:"']{1,200}:[^\s"']+""")
_BEARER = re.compile(r"(?i)\b(bearer[ \t]{1,8})([\w.~+/=-]{6,}+|[\w.~+/=-]{1,5}+(?=…))")
# The beginning of a key, and what follows it.
_KEYS = (
    (r"(?:sk|gsk|xai|glpat|xapp|xox[abceoprs]|GOCSPX)-", r"[\w-]{8,}+"),
    (r"pypi-AgE", r"[\w-]{20,}+"),
    (r"(?:[prs]k_(?:live|test)|whsec|shp(?:at|ca|pa|ss)|dop_v1|gsk|github_pat)_", r"\w{8,}+"),
    (r"(?:gh[oprsu]|hf|npm)_", r"[A-Za-z0-9]{16,}+"),
    (r"A(?:KIA|SIA)", r"[0-9A-Z]{12,}+"),
    (r"AIza", r"[\w-]{20,}+"),
    (r"ya29\.", r"[\w-]{10,}+"),
    (r"SG\.", r"[\w-]{10,}+\.[\w-]{10,}+"),
    (r"AGE-SECRET-KEY-1", r"[0-9A-Z]{20,}+"),
    (r"\d{8,10}:", r"[\w-]{30,}+"),
    (r"eyJ", r"[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+)?"),
)
_SHAPES = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(''.join, _KEYS))})")
# Before a cut, a key may be too short for its shape, and a login has no `@` yet.
_CUT_KEY = re.compile(
    rf"(?<![A-Za-z0-9_])(?:{'|'.join(start for start, _ in _KEYS)})[\w.-]{{1,60}}+(?={CUT})"
)
_CUT_USER_INFO = re.compile(rf"""://[^\s/"'<>?#\\{CUT}]++(?={CUT})""")


def _bearer(found: re.Match[str]) -> str:
    # `bearer authentication` is prose, not a secret.
    long = len(found[2]) >= 20 or found.string.startswith(CUT, found.end())
    secret = long or any(char.isdigit() for char in found[2])
    return f"{found[1]}{HIDDEN}" if secret else found[0]


def hide_keys(text: str) -> str:
    """Redacts what has the shape of a key, a token or a login, whatever its name is."""
    text = _USER_INFO.sub(f"://{HIDDEN}@", _PRIVATE_KEY.sub(HIDDEN, text))
    text = _WEBHOOK.sub(rf"\1{HIDDEN}", text)
    text = _LOGIN.sub(rf"\1\2{HIDDEN}", text)
    text = _SHAPES.sub(HIDDEN, _BEARER.sub(_bearer, text))
    return _CUT_USER_INFO.sub(f"://{HIDDEN}", _CUT_KEY.sub(HIDDEN, text)) if CUT in text else text


# ---- Names and the values after them, in a text ----

# Assignments of shells, headers, configuration and code, and members of JSON within JSON.
_NAME = re.compile(
    r"""(?<![\w.-])(?:
        (?P<name>[\w.-]++) \\{0,8}+["']?+ [ \t]{0,8}+ (?::=?+|=[=>]?+) [ \t]{0,8}+
        | (?P<flag>--?[A-Za-z][\w-]*+) [ \t]{1,8}+
    )""",
    re.VERBOSE,
)
_QUOTE = re.compile(r"""\\{0,8}["'`]""")
_SCHEME = re.compile(r"(?i:bearer|basic|token|digest)[ \t]{1,8}")
_VARIABLE = re.compile(r"\$\{\w{1,100}\}(?!\w)")
# Where other values end. The ends are searched, because Python 3.11.2 matches possessive
# repetitions of groups wrongly.
_END_OF_BARE = re.compile(r"""[\s"'`,;&|<>(){}\[\]]|\\[nrt"'\\]|\Z""")
_END_OF_WORD = re.compile(r"""[\s"'`]|\\[nrt"'\\]|\Z""")
_END_OF_LINE = re.compile(r"""[\r\n"'`]|\\[nrt"'\\]|\Z""")


@functools.cache  # there are 27 quotes
def _end_of_quoted(quote: str) -> re.Pattern[str]:
    """Finds the end of a quoted value: the same quote, escaped as often, or the end of the line."""
    return re.compile(rf"(?<!\\){re.escape(quote)}|[\r\n]|\Z")


def _hide_named(text: str) -> str:
    made: list[str] = []
    done = 0
    for found in _NAME.finditer(text):
        if found.start() < done:  # inside of a value that is redacted already
            continue
        name = found["name"] or found["flag"]
        secrecy = secrecy_of(name)
        if not secrecy and text[found.start() - 1 : found.start()] in ("?", "&"):
            secrecy = "all" if _squashed(name) in _QUERY_NAMES else ""
        start, end = _value_after(text, found.end(), name) if secrecy else (0, 0)
        if not end:
            continue
        made += [text[done:start], _mask(text[start:end], secrecy)]
        done = end
    return "".join([*made, text[done:]])


def _value_after(text: str, start: int, name: str) -> tuple[int, int]:
    """Returns where the value after a name begins and ends; two zeros if there is none."""
    if (quote := _QUOTE.match(text, start)) is not None:
        start, ending = quote.end(), _end_of_quoted(quote[0])
    elif _squashed(name) in _WHOLE_LINE:
        ending = _END_OF_LINE
    elif name.isupper() and text[start - 1] == "=":
        ending = _END_OF_WORD  # the value of an environment variable ends with the word
    else:
        if (scheme := _SCHEME.match(text, start)) is not None:
            start = scheme.end()
        if (variable := _VARIABLE.match(text, start)) is not None:
            return variable.span()
        ending = _END_OF_BARE
    found = ending.search(text, start)
    assert found is not None
    return (start, found.start()) if quote or found.start() > start else (0, 0)


def _squashed(name: str) -> str:
    return "".join(char for char in name[-MAX_NAME:].lower() if char.isalnum())


# ---- Redactors ----


def before_clip(value: JsonValue, limit: int) -> JsonValue:
    """Returns all of a JSON value that `Redactor.clip` needs: names that show what they name."""
    return clip(value, 4 * limit, CLIP_READ)


class Redactor:
    """Redacts secrets in texts and values. Redacting a second time changes nothing.

    Args:
        secrets: Values that are known to be secret, such as keys and passwords.
        workspace: The folder that is shown as `$WORKSPACE_DIR`.
        home: The folder that is shown as `~`.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        workspace: Path | None = None,
        home: Path | None = None,
    ) -> None:
        self._known = KnownSecrets(secrets)
        names: dict[str, str] = {}
        for name, path in ((WORKSPACE, workspace), (HOME, home)):
            for form in (path.absolute(), path.resolve()) if path else ():
                if len(form.parts) > 1:  # not the root, which begins every path
                    names.setdefault(str(form), name)
                    names.setdefault(quote(str(form)), name)
        # A longer name (`/home/me2`) is another folder.
        self._paths = [
            (re.compile(re.escape(path) + r"(?![\w-]|\.\w)"), names[path])
            for path in sorted(names, key=lambda path: (-len(path), path))
        ]
        self._remembered: dict[tuple[str, int], str] = {}

    def text(self, text: str) -> str:
        return self._text(text, 0)

    def value(self, value: JsonValue) -> JsonValue:
        """Redacts a JSON value. An object that is not JSON is replaced by its type."""
        return self._value(value, "", 0, 0)

    def clip(self, value: JsonValue, limit: int) -> JsonValue:
        """Redacts and clips a JSON value. The work depends on the limit, not on the value."""
        return clip(self.value(before_clip(value, limit)), limit)

    # ---- Texts ----

    def _text(self, text: str, embedded: int) -> str:
        if len(text) > MAX_REMEMBERED_CHARS:
            return self._redact(text, embedded)
        # Cached, because names, ids and kinds recur in every event.
        made = self._remembered.get((text, embedded))
        if made is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            made = self._remembered[text, embedded] = self._redact(text, embedded)
        return made

    def _redact(self, text: str, embedded: int) -> str:
        if embedded < MAX_EMBEDDED and text.lstrip()[:1] in ("{", "["):
            # In parsed JSON, names and values are easier to tell apart.
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(text)
                made = self._value(value, "", 0, embedded + 1)
                if made != value:
                    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        text = _hide_named(hide_keys(self._known.text(text)))
        for pattern, name in self._paths:
            text = pattern.sub(lambda found, name=name: name, text)
        return text

    # ---- Values ----

    def _value(self, value: JsonValue, secrecy: Secrecy, depth: int, embedded: int) -> JsonValue:
        if isinstance(value, str):
            return _mask(value, secrecy) if secrecy else self._text(value, embedded)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            if secrecy == "all":
                return HIDDEN
            # Not for an integer: `isfinite` fails if it is larger than any float.
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value
        if depth >= MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            return self._object(value, secrecy, depth + 1, embedded)
        if isinstance(value, list):
            return self._list(value, secrecy, depth + 1, embedded)
        return f"({type(value).__name__})"

    def _object(
        self, value: Mapping[str, JsonValue], secrecy: Secrecy, depth: int, embedded: int
    ) -> JsonValue:
        # The schema of a `password` parameter describes a secret, and does not hold one.
        kind = value.get("type")
        typed = isinstance(kind, list) or (isinstance(kind, str) and kind in _SCHEMA_TYPES)
        schema = bool(secrecy) and (typed or "$ref" in value or "anyOf" in value)
        schema = schema and _SCHEMA_WORDS.issuperset(value)
        # `{"name": "Cookie", "value": …}` names its secret beside it.
        names = [value.get(key) for key in ("name", "key", "header") if "value" in value]
        pairs = (secrecy_of(name) for name in names if isinstance(name, str))
        pair: Secrecy = next(filter(None, pairs), "")
        made: dict[str, JsonValue] = {}
        for key, item in value.items():
            below = secrecy or secrecy_of(str(key))
            if schema and key not in _SCHEMA_VALUES:
                below = ""
            elif pair and key == "value":
                below = pair
            name = self._text(str(key), embedded)
            while name in made:  # two names may have differed only in a secret
                name += "'"
            made[name] = self._value(item, below, depth, embedded)
        return made

    def _list(
        self, items: list[JsonValue], secrecy: Secrecy, depth: int, embedded: int
    ) -> JsonValue:
        made: list[JsonValue] = []
        before: Secrecy = ""
        for item in items:
            made.append(self._value(item, secrecy or before, depth, embedded))
            before = ""
            if isinstance(item, str):
                # `["--password", "…"]`, and headers as pairs of name and value.
                is_flag = item.startswith("-") and "=" not in item
                if is_flag or (len(items) == 2 and len(made) == 1):
                    before = secrecy_of(item)
        return made


_SCHEMA_TYPES = frozenset("string number integer boolean object array null".split())
_SCHEMA_WORDS = frozenset(
    "type description title format properties required items additionalProperties anyOf oneOf "
    "allOf enum const default examples minLength maxLength pattern minimum maximum nullable "
    "$ref".split()
)
_SCHEMA_VALUES = frozenset({"default", "const", "enum", "examples"})

"""Secrets out of texts and values, before anybody but their owner sees them.

Three nets: values that are known to be secret, names that say that what follows is one, and the
shapes that keys have. What is in none of them stays: a password that nobody has named, beside no
word that gives it away, looks like any other word.

Texts are hostile. Every pattern takes time linear in the text: what repeats is possessive, or
bounded, or begins where nothing like it stands before it.
"""

import base64
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from clawmode.types import JsonValue

HIDDEN = "***"
WORKSPACE = "$WORKSPACE_DIR"
HOME = "~"

MIN_SECRET = 4
"""Characters. To strike out shorter ones everywhere would strike out everything."""

MIN_SECRET_LINE = 12
MAX_DEPTH = 64
MAX_EMBEDDED = 3
"""How deep JSON is looked for in the texts of JSON."""

MAX_NAME = 100
MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 4_096, 64

Veil: TypeAlias = Literal["", "texts", "all"]
"""What is hidden below a name: nothing, texts but no numbers, or both."""


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


def veil(name: str) -> Veil:
    """What is to be hidden of a member or a variable of this name."""
    return _veil(name[-MAX_NAME:])


@functools.lru_cache(maxsize=4_096)
def _veil(name: str) -> Veil:
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return ""
    if not _SECRET_WORDS.isdisjoint(words) or "".join(words).endswith(_SECRET_ENDINGS):
        return "all"
    if words[-1] in _SECRET_LAST_WORDS and words != ["pwd"]:  # alone, that is a folder
        return "all"
    return "texts" if "tokens" in words else ""


# ---- What is left as it is ----

_PLAIN_WORDS = frozenset(
    "string number boolean bool integer object array null undefined true false none any unknown "
    "str int float optional required void never await".split()
)
_REFERENCE = re.compile(r"\$\{\w{1,100}\}|\$[A-Z][A-Z0-9_]{1,100}")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?")


def _hidden(text: str, how: Veil) -> str:
    """What stands for a secret. Types, references to variables and nothing at all are none."""
    if not text or text.lower() in _PLAIN_WORDS or _REFERENCE.fullmatch(text):
        return text
    return text if how == "texts" and _NUMBER.fullmatch(text) else HIDDEN


# ---- Shapes ----

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_USER_INFO = re.compile(r"""://[^\s/"'<>?#\\]+@""")
_WEBHOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[\w/-]{10,}+")
_LOGIN = re.compile(r"""(?<!\S)(-u|--user)([ \t=]{1,8}["']?)[^\s:"']{1,200}:[^\s"']+""")
_BEARER = re.compile(r"(?i)\b(bearer[ \t]{1,8})([\w.~+/=-]{6,}+)")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?:sk|gsk|xai|glpat|xapp|xox[abceoprs]|GOCSPX)-[\w-]{8,}+|pypi-AgE[\w-]{20,}+"
    r"|(?:[prs]k_(?:live|test)|whsec|shp(?:at|ca|pa|ss)|dop_v1|gsk|github_pat)_\w{8,}+"
    r"|(?:gh[oprsu]|hf|npm)_[A-Za-z0-9]{16,}+"
    r"|A(?:KIA|SIA)[0-9A-Z]{12,}+|AIza[\w-]{20,}+|ya29\.[\w-]{10,}+|SG\.[\w-]{10,}+\.[\w-]{10,}+"
    r"|AGE-SECRET-KEY-1[0-9A-Z]{20,}+|\d{8,10}:[\w-]{30,}+"
    r"|eyJ[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+)?"
    r")"
)


def _bearer(found: re.Match[str]) -> str:
    # `bearer authentication` is no secret.
    secret = len(found[2]) >= 20 or any(char.isdigit() for char in found[2])
    return f"{found[1]}{HIDDEN}" if secret else found[0]


# ---- Names and what follows them, in a text ----

# As they stand in shells, headers, configuration and code, and in JSON within JSON.
_NAME = re.compile(
    r"""(?<![\w.-])(?:
        (?P<name>[\w.-]++) \\{0,8}+["']?+ [ \t]{0,8}+ (?::=?+|=[=>]?+) [ \t]{0,8}+
        | (?P<flag>--?[A-Za-z][\w-]*+) [ \t]{1,8}+
    )""",
    re.VERBOSE,
)
# It ends at a quote like the first that has as many backslashes before it, or with the line.
_QUOTED = re.compile(
    r"""(?P<quote>\\{0,8}+["'`])(?P<said>(?:(?!(?<!\\)(?P=quote))[^\r\n])*+)""",
)
_BARE = re.compile(
    r"""(?:(?i:bearer|basic|token|digest)[ \t]{1,8}+)?+
        (?P<said>\$\{\w{1,100}\}(?!\w)|(?:[^\s"'`,;&|<>(){}\[\]\\]|\\(?![nrt"'\\]))++)""",
    re.VERBOSE,
)
_WORD = re.compile(r"""(?P<said>(?:[^\s"'`\\]|\\(?![nrt"'\\]))++)""")
_LINE = re.compile(r"""(?P<said>(?:[^\r\n"'`\\]|\\(?![nrt"'\\]))++)""")


def _hide_named(text: str) -> str:
    made: list[str] = []
    done = 0
    for found in _NAME.finditer(text):
        if found.start() < done:  # within what is hidden already
            continue
        name = found["name"] or found["flag"]
        how = veil(name)
        if not how and text[found.start() - 1 : found.start()] in ("?", "&"):
            how = "all" if _squashed(name) in _QUERY_NAMES else ""
        said = _said(text, found.end(), name) if how else None
        if said is None:
            continue
        start, end = said.span("said")
        made += [text[done:start], _hidden(text[start:end], how)]
        done = end
    return "".join([*made, text[done:]])


def _said(text: str, start: int, name: str) -> re.Match[str] | None:
    if (quoted := _QUOTED.match(text, start)) is not None:
        return quoted
    if _squashed(name) in _WHOLE_LINE:
        return _LINE.match(text, start)
    # A variable of the environment: its value ends with the word.
    is_variable = name.isupper() and text[start - 1] == "="
    return (_WORD if is_variable else _BARE).match(text, start)


def _squashed(name: str) -> str:
    return "".join(char for char in name[-MAX_NAME:].lower() if char.isalnum())


# ---- All of it ----


class Redactor:
    """Strikes secrets out of texts and values. What it made goes through it unchanged.

    Args:
        secrets: Values that are known to be secret: keys, passwords, what variables hold.
        workspace: The folder that is told as `$WORKSPACE_DIR`.
        home: The folder that is told as `~`.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        workspace: Path | None = None,
        home: Path | None = None,
    ) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # The longer first: one may be a part of another.
        self._secrets = sorted(forms, key=lambda form: (-len(form), form))
        self._paths = _path_patterns({WORKSPACE: workspace, HOME: home})
        self._remembered: dict[tuple[str, int], str] = {}

    def text(self, text: str) -> str:
        """A text without secrets."""
        return self._text(text, 0)

    def value(self, value: JsonValue) -> JsonValue:
        """A value without secrets; what is no JSON is told as its type."""
        return self._value(value, "", 0, 0)

    # ---- Texts ----

    def _text(self, text: str, embedded: int) -> str:
        if len(text) > MAX_REMEMBERED_CHARS:
            return self._redact(text, embedded)
        # Names, ids and kinds come again and again.
        made = self._remembered.get((text, embedded))
        if made is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            made = self._remembered[text, embedded] = self._redact(text, embedded)
        return made

    def _redact(self, text: str, embedded: int) -> str:
        if embedded < MAX_EMBEDDED and text.lstrip()[:1] in ("{", "["):
            # Names are easier told from values when it is parsed.
            made = self._embedded(text, embedded + 1)
            if made is not None:
                return made
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        text = _USER_INFO.sub(f"://{HIDDEN}@", text)
        text = _WEBHOOK.sub(rf"\1{HIDDEN}", text)
        text = _LOGIN.sub(rf"\1\2{HIDDEN}", text)
        text = _hide_named(text)
        text = _BEARER.sub(_bearer, text)
        text = _SHAPES.sub(HIDDEN, text)
        for pattern, name in self._paths:
            text = pattern.sub(lambda found, name=name: name, text)
        return text

    def _embedded(self, text: str, embedded: int) -> str | None:
        """A text that is JSON; None: it is not, or nothing in it was found this way."""
        try:
            value = json.loads(text)
            made = self._value(value, "", 0, embedded)
            if made == value:
                return None
            return json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        except (ValueError, RecursionError):
            return None

    # ---- Values ----

    def _value(self, value: JsonValue, how: Veil, depth: int, embedded: int) -> JsonValue:
        if isinstance(value, str):
            return _hidden(value, how) if how else self._text(value, embedded)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            if how == "all":
                return HIDDEN
            # Not of an integer: it may be larger than any float.
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value
        if depth >= MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            return self._object(value, how, depth + 1, embedded)
        if isinstance(value, list):
            return self._list(value, how, depth + 1, embedded)
        return f"({type(value).__name__})"

    def _object(
        self, value: Mapping[str, JsonValue], how: Veil, depth: int, embedded: int
    ) -> JsonValue:
        schema = bool(how) and _is_schema(value)
        told = _told_name(value)
        made: dict[str, JsonValue] = {}
        for key, item in value.items():
            below = how or veil(str(key))
            if schema and key not in _SCHEMA_VALUES:
                below = ""
            elif told and key == "value":
                below = told
            name = self._text(str(key), embedded)
            while name in made:  # two names may have been told apart by a secret alone
                name += "'"
            made[name] = self._value(item, below, depth, embedded)
        return made

    def _list(self, items: list[JsonValue], how: Veil, depth: int, embedded: int) -> JsonValue:
        made: list[JsonValue] = []
        before: Veil = ""
        for item in items:
            made.append(self._value(item, how or before, depth, embedded))
            # `["--password", "…"]`, and headers as pairs.
            is_name = _is_flag(item) or (len(items) == 2 and len(made) == 1)
            before = veil(item) if is_name and isinstance(item, str) else ""
        return made


class KnownSecrets:
    """Strikes out values that are known to be secret, and nothing else.

    For what people and programs go on working with: text that merely looks like a secret stays.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._by_first: dict[str, list[str]] = {}
        for form in self._forms:
            self._by_first.setdefault(form[0], []).append(form)

    def are_in(self, text: str) -> bool:
        """True if a secret is in a text, which may be JSON."""
        return any(form in text for form in self._forms)

    def text(self, text: str) -> str:
        """A text without them."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def value(self, value: JsonValue) -> JsonValue:
        """A value without them; numbers stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list) else value

    def begun(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a secret."""
        start = self._safe_start(text)
        while start < len(text):
            forms = self._by_first.get(text[start], ())
            left = len(text) - start
            if any(len(form) > left and form.startswith(text[start:]) for form in forms):
                return left
            # What begins inside of a whole secret goes with it.
            start += next((len(form) for form in forms if text.startswith(form, start)), 1)
        return 0

    def _safe_start(self, text: str) -> int:
        """A place near the end that is inside of no secret: only what follows has to be read."""
        longest = len(self._forms[0]) if self._forms else 0
        start = len(text) - 2 * longest
        while start > 0:
            if not self.are_in(text[max(start - longest + 1, 0) : start + longest - 1]):
                return start
            start -= longest
        return 0


def _is_flag(item: JsonValue) -> bool:
    return isinstance(item, str) and item.startswith("-") and "=" not in item


_SCHEMA_TYPES = frozenset("string number integer boolean object array null".split())
_SCHEMA_WORDS = frozenset(
    "type description title format properties required items additionalProperties anyOf oneOf "
    "allOf enum const default examples minLength maxLength pattern minimum maximum nullable "
    "$ref".split()
)
_SCHEMA_VALUES = frozenset({"default", "const", "enum", "examples"})


def _is_schema(value: Mapping[str, JsonValue]) -> bool:
    """Whether this describes a secret instead of being one: the `password` of a tool's input."""
    kind = value.get("type")
    typed = isinstance(kind, list) or (isinstance(kind, str) and kind in _SCHEMA_TYPES)
    return (typed or "$ref" in value or "anyOf" in value) and _SCHEMA_WORDS.issuperset(value)


def _told_name(value: Mapping[str, JsonValue]) -> Veil:
    """`{"name": "Authorization", "value": …}`."""
    if "value" not in value:
        return ""
    names = (value.get(key) for key in ("name", "key", "header"))
    return next((how for name in names if isinstance(name, str) and (how := veil(name))), "")


def _forms(secret: str) -> set[str]:
    """A secret as it may stand in a text: as it is, in JSON, in a URL, in base64, line by line."""
    secret = secret.strip()
    if len(secret) < MIN_SECRET or not secret.strip("*"):
        return set()
    encoded = secret.encode("utf-8", "replace")
    lines = secret.splitlines()
    made = {secret, quote(encoded, safe=""), base64.b64encode(encoded).decode().rstrip("=")}
    for ascii_only in (True, False):
        inner = secret
        for _ in range(MAX_EMBEDDED):
            inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
            made.add(inner)
    return made | {line for line in lines if len(line) >= MIN_SECRET_LINE and len(lines) > 1}


def _path_patterns(paths: Mapping[str, Path | None]) -> list[tuple[re.Pattern[str], str]]:
    names: dict[str, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        for form in (path.absolute(), path.resolve()):
            if len(form.parts) > 1:  # not the root: every path has it
                names.setdefault(str(form), name)
                names.setdefault(quote(str(form)), name)
    # Where another name goes on (`/home/me2`) it is another folder.
    return [
        (re.compile(re.escape(path) + r"(?![\w-]|\.\w)"), names[path])
        for path in sorted(names, key=lambda path: (-len(path), path))
    ]

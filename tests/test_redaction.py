"""Secrets are struck out wherever they stand, the rest stays, and no text takes long."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawmode.redaction import MAX_DEPTH, Redactor, secrecy_of
from clawmode.text import HIDDEN, KnownSecrets, clip, plain_line, shorten, truncate
from clawmode.types import JsonValue

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq9\n-----END RSA PRIVATE KEY-----"
MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-4f9A8s7d6f5g4h3j2k1l",
        "sk-ant-api03-AbCdEf_ghij-klmnop",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11AAAAAAA0abcdefghij_klmnop",
        "glpat-abcdefghij1234567890",
        "xoxb-123456789012-abcdefABCDEF",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnop",
        "sk_live_51H8abcdefghijkl",
        "hf_abcdefghijklmnopqrstuvwx",
        "123456789:AAE-abcdefghijklmnopqrstuvwxyz012345",
        JWT,
        PEM,
    ],
)
def test_what_looks_like_a_key_is_struck_out(secret: str) -> None:
    said = Redactor().text(f"I use {secret} for that, and 'x'.")
    assert said == f"I use {HIDDEN} for that, and 'x'."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("DB_PASSWORD=hun;ter&2 run", "DB_PASSWORD=*** run"),
        ("export API_KEY='two words'; ls", "export API_KEY='***'; ls"),
        ('const token = "a\\"b c" + rest', 'const token = "***" + rest'),
        ("client_secret: abc, other: def", "client_secret: ***, other: def"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("Authorization: Basic dXNlcjpwYXNz\nHost: a", "Authorization: ***\nHost: a"),
        ("Cookie: a=b; c=d\r\nHost: a", "Cookie: ***\r\nHost: a"),
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: ***' x"),
        ("curl -u me:pass https://a", "curl -u *** https://a"),
        ("tool --password hunter2 --verbose", "tool --password *** --verbose"),
        ("tool --token=hunter2", "tool --token=***"),
        ("Bearer abcdef123456", "Bearer ***"),
        ("postgres://me:pass@db/x", "postgres://***@db/x"),
        ("https://ghtoken@github.com/a", "https://***@github.com/a"),
        ("https://a/?key=abc&page=2#x", "https://a/?key=***&page=2#x"),
        ("https://a/?x=1&sig=abc", "https://a/?x=1&sig=***"),
        ("https://hooks.slack.com/services/T00/B00/XXXX", "https://hooks.slack.com/services/***"),
        (r"{\"password\":\"a\\\"b\",\"n\":1}", r"{\"password\":\"***\",\"n\":1}"),
        ("cmd='PASSWORD=hunter2 run'", "cmd='PASSWORD=*** run'"),
        ('cut off: "password": "correct horse batt', 'cut off: "password": "***'),
        ("A=1\\nSECRET=abc\\nB=2", "A=1\\nSECRET=***\\nB=2"),
    ],
)
def test_the_value_after_a_secret_name_is_redacted(text: str, told: str) -> None:
    assert Redactor().text(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "login(input: { password: string; token?: string })",
        "max_tokens=4096 tokens: 12 tokenCount=3 token_type: Bearer",
        "PWD=/srv/app",
        "apiKey: ${OPENAI_API_KEY}, token=$GITHUB_TOKEN",
        "Bearer authentication is not basic knowledge",
        "the compass and the secretary broke a key, a token and a cookie",
        "http://example.org:8080/path?page=2&keyword=x",
        "ask-me sklearn task-force-17 AKIA pk_users_id npm_config_registry",
        '{"usage":{"input":1,"output":2}}',
    ],
)
def test_text_that_is_not_a_secret_stays_unchanged(text: str) -> None:
    assert Redactor().text(text) == text


def test_members_with_telling_names_are_struck_out_at_any_depth() -> None:
    value: Any = {
        "headers": {"Authorization": "Basic x", "X-Api-Key": "k", "Accept": "text/html"},
        "pairs": [["authorization", "x"], ["accept", "y"]],
        "har": [{"name": "Set-Cookie", "value": "x"}, {"name": "Host", "value": "y"}],
        "argv": ["tool", "--password", "x", "--verbose", "y"],
        "credentials": {"user": "x", "pin": 1234, "active": True, "more": ["x"]},
        "env": {"GITHUB_TOKEN": "x", "PATH": "/bin", "SMTP_PASS": "x"},
        "text": '{"login":{"password":"x"}}',
        "tokens": ["x", 7],
        "usage": {"tokens": 12, "maxTokens": 5, "tokenLimit": 3},
        "password": "",
        "apiKey": "${API_KEY}",
    }
    assert Redactor().value(value) == {
        "headers": {"Authorization": HIDDEN, "X-Api-Key": HIDDEN, "Accept": "text/html"},
        "pairs": [["authorization", HIDDEN], ["accept", "y"]],
        "har": [{"name": "Set-Cookie", "value": HIDDEN}, {"name": "Host", "value": "y"}],
        "argv": ["tool", "--password", HIDDEN, "--verbose", "y"],
        "credentials": {"user": HIDDEN, "pin": HIDDEN, "active": True, "more": [HIDDEN]},
        "env": {"GITHUB_TOKEN": HIDDEN, "PATH": "/bin", "SMTP_PASS": HIDDEN},
        "text": '{"login":{"password":"***"}}',
        "tokens": [HIDDEN, 7],
        "usage": {"tokens": 12, "maxTokens": 5, "tokenLimit": 3},
        "password": "",
        "apiKey": "${API_KEY}",
    }


def test_a_schema_of_a_password_stays_readable_but_for_its_default() -> None:
    described: Any = {"type": "string", "description": "The password.", "default": "x"}
    made = Redactor().value({"properties": {"password": described}})
    assert made == {"properties": {"password": {**described, "default": HIDDEN}}}


def test_a_known_secret_is_found_however_it_is_written() -> None:
    secret = 'pa"ss wörd/7'
    redactor = Redactor([secret])
    once = json.dumps(secret)
    forms = [
        secret,
        once,
        json.dumps(once),
        "https://a/?q=pa%22ss%20w%C3%B6rd%2F7",
        base64.b64encode(secret.encode()).decode(),
    ]
    for form in forms:
        assert "ss" not in redactor.text(f"<{form}>"), form
    assert redactor.value({secret: [secret]}) == {HIDDEN: [HIDDEN]}


def test_of_secrets_in_each_other_nothing_is_left_and_short_ones_are_not_sought() -> None:
    redactor = Redactor(["open", "open-sesame", "abc", "", "****"])
    assert redactor.text("open-sesame open abc **** ") == "*** *** abc **** "


def test_the_lines_of_a_known_secret_are_secret() -> None:
    redactor = Redactor(["first line of it\nsecond line of it\nx"])
    assert redactor.text("it says: second line of it, x") == "it says: ***, x"


def test_names_that_only_a_secret_told_apart_are_both_kept() -> None:
    made = Redactor().value({"sk-aaaaaaaaaa": 1, "sk-bbbbbbbbbb": 2})
    assert made == {"***": 1, "***'": 2}


def test_the_workspace_and_the_home_are_told_by_their_names(tmp_path: Path) -> None:
    home = tmp_path / "ann lee"
    workspace = home / "work"
    redactor = Redactor(workspace=workspace, home=home)
    said = redactor.text(f"{workspace}/a.py -I{home}/inc {home}2 {home}.bak {home}. {workspace}")
    assert said == f"$WORKSPACE_DIR/a.py -I~/inc {home}2 {home}.bak ~. $WORKSPACE_DIR"
    assert redactor.text((workspace / "x").as_uri()) == "file://$WORKSPACE_DIR/x"
    assert redactor.value({f"{workspace}/b": None}) == {"$WORKSPACE_DIR/b": None}


def test_a_linked_home_is_known_by_both_names_and_the_root_by_none(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    redactor = Redactor(home=tmp_path / "link", workspace=Path("/"))
    assert redactor.text(f"{tmp_path}/real/a {tmp_path}/link/b /etc") == "~/a ~/b /etc"


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "A", "1", " ", "-", "_", "\\", '"', "[", '{"a":', "aA", "a.", "\n", "@", "/home/me"),
        *("sk-", "sk- ", "eyJ", "eyJaaaaaaaa.", "AKIA", "xox", "12345678:", "://", "://a:b"),
        *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "bearer ", "-u ", "-u a", "--token "),
        *("password=", 'password="', 'password=\\"', "password: ", "?key=", "Cookie: "),
        "token" + " " * 50,
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    redactor = Redactor(["known-secret"], home=Path("/home/me"))
    size = MEGABYTE if piece in ("a", "sk-") else MEGABYTE // 4

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        began = time.process_time()
        redactor.text(text)
        return time.process_time() - began

    # Quadratic would be hours; ten times linear is the machine's bad day.
    assert seconds(size) < max(100 * seconds(size // 10), 5)


def test_deep_values_and_such_that_are_no_json_do_no_harm() -> None:
    deep: list[Any] = ["sk-aaaaaaaaaaaa"]
    for _ in range(10_000):
        deep = [deep]
    redactor = Redactor()
    assert json.dumps(redactor.value(deep)) == "[" * MAX_DEPTH + '"\\u2026"' + "]" * MAX_DEPTH
    assert redactor.text("[" * 100_000) == "[" * 100_000
    assert redactor.text(f'[{"9" * 4000}, "sk-aaaaaaaaaaaa"]') == f'[{"9" * 4000},"***"]'
    odd: Any = {"a": object(), "b": float("nan"), 4: "d", "e": "\ud800"}
    assert redactor.value(odd) == {"a": "(object)", "b": "nan", "4": "d", "e": "\ud800"}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("accessToken", "all"),
        ("ACCESS_TOKEN", "all"),
        ("x-auth-token", "all"),
        ("clientsecret", "all"),
        ("AWS_SECRET_ACCESS_KEY", "all"),
        ("privateKey", "all"),
        ("dbPwd", "all"),
        ("tokens", "texts"),
        ("maxTokens", "texts"),
        ("tokenCount", ""),
        ("pwd", ""),
        ("key", ""),
        ("sessionKey", ""),
        ("author", ""),
        ("", ""),
        ("x" * 1000 + "_password", "all"),
    ],
)
def test_names_are_read_by_their_words(name: str, how: str) -> None:
    assert secrecy_of(name) == how


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_value_stays_json_and_a_second_time_changes_nothing(value: Any) -> None:
    redactor = Redactor(["secret-value"], home=Path("/home/me"))
    once = redactor.value(value)
    json.dumps(once, allow_nan=False)
    assert redactor.value(once) == once


@given(st.text(), st.text())
def test_a_known_secret_never_comes_through(before: str, after: str) -> None:
    secret = "Xy7-known-secret-Zq"
    assert secret not in Redactor([secret]).text(before + secret + after)


# ---- Texts that come in pieces ----


@pytest.mark.covers("S-8")
@given(
    secrets=st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=2),
    pieces=st.lists(st.text("ab", max_size=60) | st.text("abc", max_size=4), max_size=12),
)
def test_a_known_secret_never_comes_through_in_pieces(
    secrets: list[str], pieces: list[str]
) -> None:
    known, held, said = KnownSecrets(secrets), "", ""
    for piece in (*pieces, ""):
        held += piece
        kept = known.partial_length(held)
        said += known.text(held[: len(held) - kept])
        held = held[len(held) - kept :]
    said += known.text(held)
    assert [secret for secret in secrets if secret in said] == []


@pytest.mark.covers("S-8")
@pytest.mark.parametrize("secret", ["ababab", "abaaba", "aaaaaa"])
def test_a_secret_that_repeats_itself_is_cut_nowhere(secret: str) -> None:
    known = KnownSecrets([secret])
    for length in range(3, 300):
        first = (secret * 60)[:length]
        kept = known.partial_length(first)
        said = known.text(first[: length - kept])
        assert said.replace(HIDDEN, "") == "", "whole secrets only"


@pytest.mark.covers("S-8")
def test_a_long_piece_is_read_at_its_end_only() -> None:
    known = KnownSecrets(["hunter2-hunter2", "x" * 40 + "y"])
    began = time.process_time()
    assert known.partial_length("x" * 8 * MEGABYTE) == 40
    assert known.partial_length("and " * 2 * MEGABYTE + "hunter2-") == 8
    assert time.process_time() - began < 0.5


# ---- Cuts ----

KEY = 'k3y-"With\\quotes"/and+more'


@pytest.mark.hostile
@pytest.mark.parametrize("cut", [shorten, truncate, plain_line, clip], ids=lambda it: it.__name__)
@pytest.mark.parametrize("limit", range(100, 100 + len(KEY) + 2))
def test_half_a_secret_before_a_cut_is_struck_out(cut: Any, limit: int) -> None:
    said = str(cut("x" * 100 + KEY + " is the key", limit))
    known = KnownSecrets([KEY])
    for made in (known.text(said), Redactor([KEY]).text(said)):
        assert not any(KEY[:length] in made for length in range(4, len(KEY) + 1))
        assert made.startswith("x" * 99)
    shows = any(KEY[:length] in said for length in range(4, len(KEY) + 1))
    assert known.are_in(said) == shows
    # As an event encodes it.
    assert known.are_in(json.dumps({"text": said}, ensure_ascii=False)) == shows


def test_what_only_resembles_a_secret_stays_before_a_cut() -> None:
    known = KnownSecrets(["hunter2-hunter2", "password-of-mine"])
    for text in ("hunt", "a hun…", "my hunter2 …", "unter2-…", "…", "… hunt", "x… …", ""):
        assert known.text(text) == text
        assert not known.are_in(text)
    assert known.text("a hunt… b pass… hunter2-hunter2…") == "a ***… b ***… ***…"


@pytest.mark.hostile
@pytest.mark.parametrize(
    "piece", ["…", "abcd…", "hunt…", "hunter2-" * 500 + "…", "x…hunter2-hunter"]
)
def test_many_cuts_take_little_time(piece: str) -> None:
    known = KnownSecrets(["hunter2-hunter2", "hunter2-" * 400])
    text = piece * (MEGABYTE // len(piece))
    before = time.process_time()
    known.text(text)
    assert time.process_time() - before < 5


SHAPED = (
    ("sk-", "1234abcd5678efgh"),
    ("ghp_", "1234567890abcdefghijABCDEFGHIJ123456"),
    ("AKIA", "1234567890ABCDEF"),
    ("AIza", "1234567890abcdefghijABCDEFGHIJ12345"),
    ("SG.", "1234567890abcdefghij12.abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"),
    ("1234567890:", "abcdefghijklmnopqrstuvwxyz_ABCDEFGH"),
    ("postgres://", "admin:correct-horse-battery@db.example/orders"),
    ("https://", "a-token-as-a-user-name@git.example/repository"),
    ("Bearer ", "correct-horse-battery-staple-1"),
    ("hooks.slack.com/services/", "T12345678/B12345678/abcdefghijklmnop"),
)
"""The beginning of a secret, which everybody knows, and the rest."""


@pytest.mark.hostile
@pytest.mark.parametrize(("start", "rest"), SHAPED)
@pytest.mark.parametrize("cut", [shorten, truncate, plain_line, clip], ids=lambda it: it.__name__)
def test_half_of_what_has_the_shape_of_a_secret_is_struck_out_before_a_cut(
    cut: Any, start: str, rest: str
) -> None:
    text = f"{'x' * 99} {start}{rest} y"
    for limit in range(100, len(text) + 1):
        made = Redactor().text(str(cut(text, limit)))
        assert made.startswith("x" * 99)
        assert f"{start}{rest[0]}" not in made


@pytest.mark.hostile
@pytest.mark.parametrize("depth", range(8))
@pytest.mark.parametrize(("start", "rest"), SHAPED)
def test_a_clipped_value_shows_no_half_of_a_secret(start: str, rest: str, depth: int) -> None:
    value: JsonValue = {"text": f"{start}{rest}/{'x' * 1_000}", "more": 1}
    for _ in range(depth):
        value = {"a": value, "b": "x" * 500}
    made = json.dumps(Redactor().clip(value, 300))
    assert len(made) < 800
    assert f"{start}{rest[0]}" not in made


@pytest.mark.hostile
@pytest.mark.parametrize("length", [1, 24, 90, 200, 1_000, 2_000, 100_000])
def test_a_clipped_name_still_says_that_its_value_is_secret(length: int) -> None:
    made = Redactor().clip({f"{'x' * length}_password": "hunter2", "n": "y" * 2_000}, 300)
    assert "hunter2" not in json.dumps(made)
    assert len(json.dumps(made)) < 2_000


@pytest.mark.hostile
@pytest.mark.parametrize("piece", ["sk-", "://", "bearer a", "eyJ.", "://x", "sk-…", "12345678:"])
def test_many_beginnings_of_secrets_take_little_time(piece: str) -> None:
    text = piece * (MEGABYTE // len(piece)) + "…"
    before = time.process_time()
    Redactor().text(text)
    assert time.process_time() - before < 5

"""Tokens as hashes, scopes, and who has tried too often."""

import json
import stat
from pathlib import Path

import pytest

from clawmode.addresses import Attempts
from clawmode.rpc.scopes import EVENTS, SCOPES, expand, granted, may_see
from clawmode.rpc.tokens import FILE, Token, TokenError, Tokens, digest


def test_a_token_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    made = tokens.add("laptop", ("operator.read",))
    found = tokens.find(made)
    assert found is not None
    assert (found.name, found.scopes) == ("laptop", ("operator.read",))
    text = (tmp_path / FILE).read_text()
    assert made not in text
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert tokens.find(made + "x") is None
    assert tokens.find("") is None
    assert tokens.find("\ud800") is None


def test_a_token_that_is_revoked_lets_nobody_in(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    made = tokens.add("laptop")
    with pytest.raises(TokenError, match="already"):
        tokens.add("laptop")
    tokens.revoke("laptop")
    assert tokens.find(made) is None
    with pytest.raises(TokenError, match="no token"):
        tokens.revoke("laptop")


def test_tokens_of_the_process_count_too(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, [Token(name="local", digest=digest("s3cret"))])
    found = tokens.find("s3cret")
    assert found is not None
    assert found.name == "local"
    assert not tokens.are_chosen()
    tokens.add("mine")
    assert tokens.are_chosen()


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", "{}", '{"tokens": 5}', '{"tokens": [5]}', '{"tokens": [{}]}'),
        '{"tokens": [{"name": "a", "sha256": "short", "scopes": []}]}',
        json.dumps({"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": ["operator.god"]}]}),
        "[" * 100_000,
        " " * (2 << 20),
    ],
)
def test_an_invalid_token_file_lets_nobody_in_and_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    tokens = Tokens(tmp_path, [Token(name="local", digest=digest("s3cret"))])
    with pytest.raises(TokenError, match="not a list of tokens"):
        tokens.find("s3cret")


def test_scopes_include_each_other_as_they_say() -> None:
    assert expand(("operator.write",)) == {"operator.read", "operator.write"}
    assert expand(("operator.admin",)) == set(SCOPES)
    assert expand(("operator.approvals", "nonsense")) == {"operator.approvals"}
    assert granted(("operator.write",), ()) == {"operator.read", "operator.write"}
    assert granted(("operator.write",), ("operator.admin",)) == {"operator.read", "operator.write"}
    assert granted(("operator.read",), ("operator.approvals",)) == frozenset()


def test_events_are_seen_by_those_who_may() -> None:
    for name, scope in EVENTS.items():
        for held in SCOPES:
            scopes = expand((held,))
            assert may_see(name, scopes) is (scope is None or scope in scopes)
    assert not may_see("presence", expand(("operator.admin",)))


def test_who_fails_too_often_has_to_wait() -> None:
    now = [0.0]
    attempts = Attempts(most=3, seconds=60, clock=lambda: now[0])
    for _ in range(3):
        assert attempts.wait("a") == 0
        attempts.fail("a")
        now[0] += 1
    assert attempts.wait("a") == pytest.approx(57)
    assert attempts.wait("b") == 0
    now[0] = 60.5
    assert attempts.wait("a") == 0
    attempts.fail("a")
    assert attempts.wait("a") > 0
    now[0] = 1_000
    assert attempts.wait("a") == 0


def test_many_addresses_do_not_fill_the_memory() -> None:
    attempts = Attempts()
    for number in range(5_000):
        attempts.fail(str(number))
    assert len(attempts._failed) == 1_000

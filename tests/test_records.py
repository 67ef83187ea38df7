"""Records: JSON objects as models, and the messages about JSON that does not fit."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from clawmode.exceptions import ConfigurationError
from clawmode.records import (
    Items,
    Record,
    adapter,
    parse,
    secret,
)


class Card(Record):
    kind: Literal["card"] = "card"
    card_number: int = secret(0)


class Cash(Record):
    kind: Literal["cash"] = "cash"
    coins: Items[int] = ()


class Sale(Record):
    item_name: str
    by: Annotated[Card | Cash, Field(discriminator="kind")] | None = None
    tags: Items[str] = ()


def test_a_record_has_camel_case_keys_and_ignores_unknown_ones() -> None:
    sale = parse(Sale, {"itemName": "x", "tags": ["a"], "new": 1})
    assert sale == Sale(item_name="x", tags=("a",))
    assert sale == parse(Sale, b'{"itemName": "x", "tags": ["a"]}')
    assert adapter(Sale).dump_python(sale, mode="json", exclude_defaults=True) == {
        "itemName": "x",
        "tags": ["a"],
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "s.itemName: found nothing, expected a string"),
        (b"{}", "s.itemName: found nothing, expected a string"),
        (b"{", "s: found other text (EOF while parsing an object at line 1 column 1)"),
        ({"itemName": 5}, "s.itemName: found 5, expected a string"),
        ({"itemName": None}, "s.itemName: found null, expected a string"),
        ({"itemName": {"a": 1}}, "s.itemName: found an object, expected a string"),
        ([], "s: found an empty list, expected an object"),
        ({"itemName": "x", "tags": ["a", 1]}, "s.tags[1]: found 1, expected a string"),
        ({"itemName": "x", "by": {"kind": "cash", "coins": ["1"]}}, "s.by.coins[0]: found"),
        (
            {"itemName": "x", "by": {"kind": "card", "cardNumber": "4711"}},
            "s.by.cardNumber: found a string, expected an integer",
        ),
        (
            {"itemName": 1, "tags": "x"},
            "s.itemName: found 1, expected a string; s.tags: found a string, expected a list",
        ),
    ],
)
def test_a_message_names_path_value_and_expected_value(value: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(Sale, value, "s")
    assert str(caught.value).startswith(message)
    assert "4711" not in str(caught.value)

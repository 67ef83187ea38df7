"""The simulated company: its records, which tools read and change.

Everything is derived from one seed, so that a task has one right answer. Text about time is fixed;
only the carriers' rate limit looks at a clock.
"""

import random
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

CITIES = {
    "Berlin": ("DE", "Europe/Berlin"),
    "Lyon": ("FR", "Europe/Paris"),
    "Porto": ("PT", "Europe/Lisbon"),
    "Boston": ("US", "America/New_York"),
    "Osaka": ("JP", "Asia/Tokyo"),
    "Pune": ("IN", "Asia/Kolkata"),
}
FIRST = ("Ada", "Bo", "Cem", "Dana", "Eli", "Fay", "Gus", "Hana", "Ivo", "Juno", "Kai", "Lea")
LAST = ("Abel", "Brandt", "Costa", "Duarte", "Endo", "Fischer", "Gupta", "Hale", "Ito", "Joshi")
GOODS = ("lamp", "desk", "chair", "shelf", "clock", "rug", "vase", "stool", "mirror", "bench")
COLOURS = ("oak", "white", "black", "green", "brass", "grey", "blue", "red")
WAREHOUSES = ("north", "south", "east", "west")
TOPICS = ("late delivery", "broken part", "wrong colour", "refund", "invoice", "assembly")

CARRIER_CALLS = 8
CARRIER_SECONDS = 0.2
"""A carrier answers `CARRIER_CALLS` calls, and rejects the next ones for `CARRIER_SECONDS`."""


class RateLimited(Exception):
    """A carrier rejects a call; the message has the form that HTTP APIs use."""


@dataclass
class World:
    """The records of the company. Tables map ids to rows."""

    seed: int = 7
    customers: dict[str, Row] = field(default_factory=dict)
    products: dict[str, Row] = field(default_factory=dict)
    orders: dict[str, Row] = field(default_factory=dict)
    invoices: dict[str, Row] = field(default_factory=dict)
    shipments: dict[str, Row] = field(default_factory=dict)
    tickets: dict[str, Row] = field(default_factory=dict)
    employees: dict[str, Row] = field(default_factory=dict)
    meetings: dict[str, Row] = field(default_factory=dict)
    accounts: dict[str, Row] = field(default_factory=dict)
    sensors: dict[str, Row] = field(default_factory=dict)
    stock: dict[tuple[str, str], int] = field(default_factory=dict)
    transfers: list[Row] = field(default_factory=list)
    refunds: list[Row] = field(default_factory=list)
    mails: list[Row] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)
    vouchers: dict[str, Row] = field(default_factory=dict)
    _carrier_calls: int = 0
    _carrier_since: float = 0.0

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self._add_people(chance)
        self._add_products(chance)
        self._add_orders(chance)
        self._add_tickets(chance)
        self._add_rest(chance)

    def _add_people(self, chance: random.Random) -> None:
        names = [f"{first} {last}" for last in LAST for first in FIRST]
        chance.shuffle(names)
        for number in range(60):
            name, city = names[number], chance.choice([*CITIES])
            country, _ = CITIES[city]
            key = f"C{number + 1:03}"
            self.customers[key] = {
                "id": key,
                "name": name,
                "email": f"{name.lower().replace(' ', '.')}@example.net",
                "city": city,
                "country": country,
                "tier": chance.choice(["basic", "basic", "plus", "gold"]),
                "newsletter": chance.random() < 0.5,
            }
        for number in range(40):
            name, city = names[60 + number], chance.choice([*CITIES])
            key = f"E{number + 1:02}"
            self.employees[key] = {
                "id": key,
                "name": name,
                "email": f"{name.lower().replace(' ', '.')}@company.example",
                "team": chance.choice(["sales", "support", "finance", "logistics"]),
                "manager_id": None if number < 4 else f"E{chance.randrange(1, 5):02}",
                "city": city,
                "time_zone": CITIES[city][1],
                "vacation_days_left": chance.randrange(0, 25),
            }

    def _add_products(self, chance: random.Random) -> None:
        for number in range(80):
            key = f"P{number + 1:03}"
            name = f"{COLOURS[number % 8]} {GOODS[number // 8]}"
            price = chance.randrange(900, 40_000)
            reorder = chance.randrange(5, 20)
            self.products[key] = {
                "id": key,
                "name": name,
                "price_cents": price,
                "reorder_level": reorder,
                "discontinued": chance.random() < 0.1,
            }
            for warehouse in WAREHOUSES:
                self.stock[key, warehouse] = chance.randrange(0, 40)

    def _add_orders(self, chance: random.Random) -> None:
        for number in range(240):
            key = f"O{number + 1:04}"
            lines = [
                {"product_id": f"P{chance.randrange(1, 81):03}", "quantity": chance.randrange(1, 5)}
                for _ in range(chance.randrange(1, 4))
            ]
            total = sum(
                self.products[line["product_id"]]["price_cents"] * line["quantity"]
                for line in lines
            )
            status = chance.choice(["open", "paid", "shipped", "shipped", "delivered", "cancelled"])
            day = f"2026-{1 + number // 24:02}-{1 + number % 24:02}"
            self.orders[key] = {
                "id": key,
                "customer_id": f"C{chance.randrange(1, 61):03}",
                "status": status,
                "placed_on": day,
                "lines": lines,
                "total_cents": total,
                "notes": [],
            }
            if status != "cancelled":
                invoice = f"I{number + 1:04}"
                self.invoices[invoice] = {
                    "id": invoice,
                    "order_id": key,
                    "amount_cents": total,
                    "currency": "EUR",
                    "due_on": f"2026-{min(12, 2 + number // 24):02}-{1 + number % 24:02}",
                    "status": "unpaid" if status == "open" else "paid",
                    "reminders": 0,
                }
            if status in ("shipped", "delivered"):
                shipment = f"S{number + 1:04}"
                self.shipments[shipment] = {
                    "id": shipment,
                    "order_id": key,
                    "carrier": chance.choice(["falcon", "turtle"]),
                    "state": "delivered"
                    if status == "delivered"
                    else chance.choice(["in transit", "in transit", "lost"]),
                }

    def _add_tickets(self, chance: random.Random) -> None:
        for number in range(120):
            key = f"T{number + 1:03}"
            self.tickets[key] = {
                "id": key,
                "customer_id": f"C{chance.randrange(1, 61):03}",
                "subject": chance.choice(TOPICS),
                "priority": chance.choice(["low", "normal", "normal", "high"]),
                "status": chance.choice(["open", "open", "pending", "closed"]),
                "assignee_id": None,
                "hours_waiting": chance.randrange(1, 200),
                "comments": [],
            }

    def _add_rest(self, chance: random.Random) -> None:
        for number, name in enumerate(("operations", "payroll", "taxes", "reserve", "travel")):
            key = f"A{number + 1}"
            cents = chance.randrange(500_000, 9_000_000)
            self.accounts[key] = {"id": key, "name": name, "balance_cents": cents}
        for number in range(60):
            key = f"N{number + 1:02}"
            self.sensors[key] = {
                "id": key,
                "warehouse": WAREHOUSES[number % 4],
                "celsius": round(chance.uniform(2, 31), 3),
                "battery_percent": chance.randrange(3, 100),
            }
        for number in range(30):
            key = f"M{number + 1:02}"
            hour = chance.randrange(7, 16)
            self.meetings[key] = {
                "id": key,
                "title": chance.choice(["review", "planning", "sync", "interview"]),
                "starts_at": f"2026-11-{18 + number % 3}T{hour:02}:00:00Z",
                "minutes": chance.choice([30, 60]),
                "attendee_ids": sorted(chance.sample([*self.employees], 3)),
            }
        self.flags = {"express_checkout": True, "gift_wrap": False, "night_mode": False}

    def ask_carrier(self) -> None:
        """Counts a call to a carrier.

        Raises:
            RateLimited: Too many calls were made in a short time.
        """
        now = time.monotonic()
        if now - self._carrier_since >= CARRIER_SECONDS:
            self._carrier_since, self._carrier_calls = now, 0
        self._carrier_calls += 1
        if self._carrier_calls > CARRIER_CALLS:
            raise RateLimited(f"429 Too Many Requests: retry after {CARRIER_SECONDS} s")

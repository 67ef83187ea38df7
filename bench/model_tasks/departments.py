"""The tools of the simulated company, by department: thin access to `World`.

Some tools declare their result, most return a plain `dict`, as in real code. Lists come in pages:
by cursor in the shop, by page number in support. Money moves only after approval.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar

from bench.model_tasks.world import WAREHOUSES, Row, World
from clawmode import Tool, tool

PAGE = 25
F = TypeVar("F", bound=Callable[..., Any])

APPROVED = ("transfer_money", "issue_refund", "delete_customer")
"""Tools that a person has to approve."""


def writes(function: F) -> F:
    """Marks a method whose tool changes something."""
    setattr(function, "writes", True)  # noqa: B010 (functions have no such attribute for checkers)
    return function


class Department:
    """A group of tools: each public method is one."""

    def __init__(self, world: World) -> None:
        self.world = world

    def tools(self) -> list[Tool]:
        """Returns a tool for every public method."""
        made: list[Tool] = []
        for name, method in inspect.getmembers(self, inspect.ismethod):
            if not name.startswith("_") and name != "tools":
                effect = "write" if getattr(method, "writes", False) else "read"
                made.append(tool(effect=effect)(method))
        return made


def find(table: dict[str, Row], key: str, kind: str) -> Row:
    """Returns a row. Raises ValueError if there is none with this id."""
    if key not in table:
        raise ValueError(f"no {kind} has the id {key!r}")
    return table[key]


def by_cursor(rows: list[Row], cursor: str | None, limit: int) -> dict[str, Any]:
    """Returns one page of a list, and the cursor of the next page if there is one."""
    start = int(cursor or 0)
    found: dict[str, Any] = {"items": rows[start : start + limit]}
    if start + limit < len(rows):
        found["next_cursor"] = str(start + limit)
    return found


# ---- Shop ----


class Customer(TypedDict):
    id: str
    name: str
    email: str
    city: str
    country: str
    tier: str
    newsletter: bool


OrderStatus = Literal["open", "paid", "shipped", "delivered", "cancelled"]


class Shop(Department):
    def get_customer(self, customer_id: str) -> Customer:
        """Return one customer."""
        row: Any = find(self.world.customers, customer_id, "customer")
        return row

    def list_customers(
        self, country: str | None = None, cursor: str | None = None, limit: int = PAGE
    ) -> dict[str, Any]:
        """List customers, at most 25 at a time.

        Args:
            country: Two letters.
            cursor: `next_cursor` of the page before.
            limit: At most 25.
        """
        if not 1 <= limit <= PAGE:
            raise ValueError(f"limit must be 1 to {PAGE}")
        rows = [row for row in self.world.customers.values() if country in (None, row["country"])]
        return by_cursor(rows, cursor, limit)

    def find_customer_by_email(self, email: str) -> Customer | None:
        """Find a customer by an exact email address."""
        rows: Any = [row for row in self.world.customers.values() if row["email"] == email]
        return rows[0] if rows else None

    @writes
    def update_customer_tier(
        self, customer_id: str, tier: Literal["basic", "plus", "gold"]
    ) -> dict[str, Any]:
        """Change a customer's tier."""
        row = find(self.world.customers, customer_id, "customer")
        row["tier"] = tier
        return row

    @writes
    def set_newsletter(self, customer_id: str, subscribed: bool) -> dict[str, Any]:
        """Subscribe a customer to the newsletter, or unsubscribe them."""
        row = find(self.world.customers, customer_id, "customer")
        row["newsletter"] = subscribed
        return row

    @writes
    def delete_customer(self, customer_id: str) -> dict[str, Any]:
        """Delete a customer with everything that is stored about them."""
        find(self.world.customers, customer_id, "customer")
        return self.world.customers.pop(customer_id)

    def get_order(self, order_id: str) -> dict[str, Any]:
        """Return one order with its lines."""
        return find(self.world.orders, order_id, "order")

    def list_orders(
        self,
        status: OrderStatus | None = None,
        customer_id: str | None = None,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """List orders, oldest first, 25 at a time."""
        rows = [
            row
            for row in self.world.orders.values()
            if status in (None, row["status"]) and customer_id in (None, row["customer_id"])
        ]
        return by_cursor(rows, cursor, PAGE)

    @writes
    def cancel_order(self, order_id: str, reason: str) -> dict[str, Any]:
        """Cancel an order that was not shipped."""
        row = find(self.world.orders, order_id, "order")
        if row["status"] not in ("open", "paid"):
            raise ValueError(f"order {order_id} is {row['status']}: it cannot be cancelled")
        row["status"] = "cancelled"
        row["notes"].append(reason)
        return row

    @writes
    def add_order_note(self, order_id: str, note: str) -> dict[str, Any]:
        """Add a note to an order."""
        row = find(self.world.orders, order_id, "order")
        row["notes"].append(note)
        return {"order_id": order_id, "notes": len(row["notes"])}

    @writes
    def create_voucher(self, customer_id: str, percent: int) -> dict[str, Any]:
        """Create a voucher for a customer's next order."""
        find(self.world.customers, customer_id, "customer")
        code = f"V{len(self.world.vouchers) + 1:03}"
        row = {"code": code, "customer_id": customer_id, "percent": percent}
        self.world.vouchers[code] = row
        return row

    def count_orders_by_status(self) -> dict[str, int]:
        """Count all orders by their status."""
        counts: dict[str, int] = {}
        for row in self.world.orders.values():
            counts[row["status"]] = counts.get(row["status"], 0) + 1
        return counts


# ---- Products and stock ----


class Product(TypedDict):
    id: str
    name: str
    price_cents: int
    reorder_level: int
    discontinued: bool


class Warehouse(Department):
    def get_product(self, product_id: str) -> Product:
        """Return one product."""
        row: Any = find(self.world.products, product_id, "product")
        return row

    def list_products(self, cursor: str | None = None) -> dict[str, Any]:
        """List products, 25 at a time."""
        return by_cursor([*self.world.products.values()], cursor, PAGE)

    def search_products(self, words: str) -> list[Product]:
        """Find products whose name contains all words."""
        wanted = words.lower().split()
        found: Any = [
            row
            for row in self.world.products.values()
            if all(word in row["name"] for word in wanted)
        ]
        return found

    def get_stock(self, product_id: str, warehouse: str | None = None) -> dict[str, Any]:
        """Return the stock of a product, in one warehouse or in all."""
        find(self.world.products, product_id, "product")
        return {
            "product_id": product_id,
            "stock": {
                place: self.world.stock[product_id, place]
                for place in WAREHOUSES
                if warehouse in (None, place)
            },
        }

    @writes
    def transfer_stock(
        self, product_id: str, source: str, target: str, quantity: int
    ) -> dict[str, Any]:
        """Move stock from one warehouse to another."""
        have = self.world.stock.get((product_id, source), 0)
        if quantity < 1 or quantity > have:
            raise ValueError(f"warehouse {source} has {have} of {product_id}, asked {quantity}")
        self.world.stock[product_id, source] -= quantity
        self.world.stock[product_id, target] += quantity
        return {"product_id": product_id, source: have - quantity}

    @writes
    def reorder_product(self, product_id: str, quantity: int) -> dict[str, Any]:
        """Order more of a product from its maker; it arrives in the north warehouse."""
        row = find(self.world.products, product_id, "product")
        if row["discontinued"]:
            raise ValueError(f"{product_id} is discontinued and cannot be ordered")
        self.world.stock[product_id, "north"] += quantity
        return {"product_id": product_id, "ordered": quantity}

    @writes
    def set_price(self, product_id: str, price_cents: int) -> dict[str, Any]:
        """Change the price of a product."""
        row = find(self.world.products, product_id, "product")
        row["price_cents"] = price_cents
        return row

    @writes
    def discontinue_product(self, product_id: str) -> dict[str, Any]:
        """Mark a product as discontinued."""
        row = find(self.world.products, product_id, "product")
        row["discontinued"] = True
        return row

    def list_warehouses(self) -> list[str]:
        """List the names of all warehouses."""
        return [*WAREHOUSES]

    def list_sensors(self) -> list[str]:
        """List the ids of all sensors."""
        return [*self.world.sensors]

    def read_sensor(self, sensor_id: str) -> dict[str, Any]:
        """Read one sensor: where it is, temperature and battery."""
        return find(self.world.sensors, sensor_id, "sensor")


# ---- Shipping ----


class Shipping(Department):
    def get_shipment(self, order_id: str) -> dict[str, Any]:
        """Return the shipment of an order: its id and carrier."""
        for row in self.world.shipments.values():
            if row["order_id"] == order_id:
                return {"id": row["id"], "order_id": order_id, "carrier": row["carrier"]}
        raise ValueError(f"order {order_id} has no shipment")

    def track_shipment(self, shipment_id: str) -> dict[str, Any]:
        """Ask the carrier where a shipment is. Carriers limit the rate of these calls."""
        self.world.ask_carrier()
        row = find(self.world.shipments, shipment_id, "shipment")
        return {"id": shipment_id, "state": row["state"]}

    def list_shipments(self, carrier: str | None = None, cursor: str | None = None) -> Any:
        """List shipments, 25 at a time, without their state."""
        rows = [
            {key: row[key] for key in ("id", "order_id", "carrier")}
            for row in self.world.shipments.values()
            if carrier in (None, row["carrier"])
        ]
        return by_cursor(rows, cursor, PAGE)

    @writes
    def report_lost_shipment(self, shipment_id: str) -> dict[str, Any]:
        """Report to the carrier that a shipment is lost."""
        row = find(self.world.shipments, shipment_id, "shipment")
        row["reported"] = True
        return {"id": shipment_id, "reported": True}

    def estimate_shipping_cost(self, weight_grams: int, country: str) -> dict[str, int]:
        """Estimate the cost of a parcel in cents."""
        return {"cents": 490 + weight_grams // 10 + (0 if country == "DE" else 600)}

    def list_carriers(self) -> list[str]:
        """List the carriers."""
        return ["falcon", "turtle"]


# ---- Finance ----


class Finance(Department):
    def get_invoice(self, invoice_id: str) -> dict[str, Any]:
        """Return one invoice."""
        return find(self.world.invoices, invoice_id, "invoice")

    def list_invoices(
        self, status: Literal["paid", "unpaid"] | None = None, cursor: str | None = None
    ) -> dict[str, Any]:
        """List invoices, oldest first, 25 at a time."""
        rows = [row for row in self.world.invoices.values() if status in (None, row["status"])]
        return by_cursor(rows, cursor, PAGE)

    @writes
    def send_reminder(self, invoice_id: str) -> dict[str, Any]:
        """Send a payment reminder for an unpaid invoice."""
        row = find(self.world.invoices, invoice_id, "invoice")
        if row["status"] == "paid":
            raise ValueError(f"invoice {invoice_id} is paid: no reminder is sent")
        row["reminders"] += 1
        return {"invoice_id": invoice_id, "reminders": row["reminders"]}

    @writes
    def mark_invoice_paid(self, invoice_id: str) -> dict[str, Any]:
        """Record that an invoice was paid."""
        row = find(self.world.invoices, invoice_id, "invoice")
        row["status"] = "paid"
        return row

    @writes
    def issue_refund(self, order_id: str, amount_cents: int, reason: str) -> dict[str, Any]:
        """Refund money for an order. Needs approval."""
        row = find(self.world.orders, order_id, "order")
        if not 0 < amount_cents <= row["total_cents"]:
            raise ValueError(f"the refund must be 1 to {row['total_cents']} cents")
        refund = {"order_id": order_id, "amount_cents": amount_cents, "reason": reason}
        self.world.refunds.append(refund)
        return refund

    def list_accounts(self) -> list[dict[str, Any]]:
        """List the accounts of the company with their balances."""
        return [*self.world.accounts.values()]

    def get_balance(self, account_id: str) -> dict[str, Any]:
        """Return the balance of an account."""
        return find(self.world.accounts, account_id, "account")

    @writes
    def transfer_money(
        self, source: str, target: str, amount_cents: int, purpose: str
    ) -> dict[str, Any]:
        """Transfer money between accounts of the company. Needs approval."""
        row = find(self.world.accounts, source, "account")
        find(self.world.accounts, target, "account")
        if not 0 < amount_cents <= row["balance_cents"]:
            raise ValueError(f"account {source} holds {row['balance_cents']} cents")
        self.world.accounts[source]["balance_cents"] -= amount_cents
        self.world.accounts[target]["balance_cents"] += amount_cents
        transfer = {"source": source, "target": target, "amount_cents": amount_cents}
        self.world.transfers.append(transfer | {"purpose": purpose})
        return transfer

    def convert_currency(self, amount_cents: int, source: str, target: str) -> dict[str, int]:
        """Convert an amount by today's rates (EUR, USD, JPY, INR)."""
        rates = {"EUR": 1.0, "USD": 1.1, "JPY": 160.0, "INR": 90.0}
        if source not in rates or target not in rates:
            raise ValueError(f"currencies are {', '.join(rates)}")
        return {"amount_cents": round(amount_cents / rates[source] * rates[target])}

    def get_tax_rate(self, country: str) -> dict[str, Any]:
        """Return the sales tax of a country in percent."""
        rates = {"DE": 19, "FR": 20, "PT": 23, "US": 0, "JP": 10, "IN": 18}
        return {"country": country, "percent": rates.get(country, 0)}

    def list_refunds(self) -> list[dict[str, Any]]:
        """List the refunds that were issued."""
        return self.world.refunds

    def list_transfers(self) -> list[dict[str, Any]]:
        """List the transfers that were made."""
        return self.world.transfers


# ---- Support ----


class Support(Department):
    def get_ticket(self, ticket_id: str) -> dict[str, Any]:
        """Return one ticket with its comments."""
        return find(self.world.tickets, ticket_id, "ticket")

    def list_tickets(
        self,
        status: Literal["open", "pending", "closed"] | None = None,
        priority: Literal["low", "normal", "high"] | None = None,
        page: int = 1,
    ) -> dict[str, Any]:
        """List tickets, 20 on a page; pages start at 1."""
        rows = [
            row
            for row in self.world.tickets.values()
            if status in (None, row["status"]) and priority in (None, row["priority"])
        ]
        return {"tickets": rows[20 * (page - 1) : 20 * page], "pages": -(-len(rows) // 20)}

    @writes
    def assign_ticket(self, ticket_id: str, employee_id: str) -> dict[str, Any]:
        """Assign a ticket to an employee of the support team."""
        row = find(self.world.tickets, ticket_id, "ticket")
        if find(self.world.employees, employee_id, "employee")["team"] != "support":
            raise ValueError(f"employee {employee_id} is not in the support team")
        row["assignee_id"] = employee_id
        return {"id": ticket_id, "assignee_id": employee_id}

    @writes
    def close_ticket(self, ticket_id: str, comment: str) -> dict[str, Any]:
        """Close a ticket with a comment. Tickets of high priority need an assignee first."""
        row = find(self.world.tickets, ticket_id, "ticket")
        if row["priority"] == "high" and row["assignee_id"] is None:
            raise ValueError(f"ticket {ticket_id} has high priority: assign it before closing")
        row["status"] = "closed"
        row["comments"].append(comment)
        return {"id": ticket_id, "status": "closed"}

    @writes
    def comment_ticket(self, ticket_id: str, comment: str) -> dict[str, Any]:
        """Add a comment to a ticket."""
        find(self.world.tickets, ticket_id, "ticket")["comments"].append(comment)
        return {"id": ticket_id}

    @writes
    def set_ticket_priority(
        self, ticket_id: str, priority: Literal["low", "normal", "high"]
    ) -> dict[str, Any]:
        """Change the priority of a ticket."""
        row = find(self.world.tickets, ticket_id, "ticket")
        row["priority"] = priority
        return {"id": ticket_id, "priority": priority}

    def count_tickets(self) -> dict[str, int]:
        """Count tickets by their status."""
        counts: dict[str, int] = {}
        for row in self.world.tickets.values():
            counts[row["status"]] = counts.get(row["status"], 0) + 1
        return counts


# ---- Office ----


class Office(Department):
    def get_employee(self, employee_id: str) -> dict[str, Any]:
        """Return one employee."""
        return find(self.world.employees, employee_id, "employee")

    def list_employees(self, team: str | None = None) -> list[dict[str, Any]]:
        """List employees: their ids, names and teams."""
        return [
            {key: row[key] for key in ("id", "name", "team")}
            for row in self.world.employees.values()
            if team in (None, row["team"])
        ]

    def list_teams(self) -> list[str]:
        """List the teams."""
        return ["sales", "support", "finance", "logistics"]

    def list_meetings(self, employee_id: str, day: str) -> list[dict[str, Any]]:
        """List the meetings of an employee that begin on a day in UTC.

        Args:
            employee_id: The employee.
            day: A date, such as 2026-11-18.
        """
        return [
            row
            for row in self.world.meetings.values()
            if employee_id in row["attendee_ids"] and row["starts_at"][:10] == day
        ]

    @writes
    def create_meeting(
        self, title: str, starts_at: str, minutes: int, attendee_ids: list[str]
    ) -> dict[str, Any]:
        """Create a meeting.

        Args:
            title: What it is about.
            starts_at: Date and time in UTC, such as 2026-11-18T09:00:00Z.
            minutes: How long it takes.
            attendee_ids: Employees who take part.
        """
        for employee in attendee_ids:
            find(self.world.employees, employee, "employee")
        key = f"M{len(self.world.meetings) + 1:02}"
        self.world.meetings[key] = {
            "id": key,
            "title": title,
            "starts_at": starts_at,
            "minutes": minutes,
            "attendee_ids": sorted(attendee_ids),
        }
        return self.world.meetings[key]

    @writes
    def cancel_meeting(self, meeting_id: str) -> dict[str, Any]:
        """Cancel a meeting."""
        find(self.world.meetings, meeting_id, "meeting")
        return self.world.meetings.pop(meeting_id)

    @writes
    def send_mail(self, to: str, subject: str, body: str) -> dict[str, Any]:
        """Send a mail to a customer or an employee."""
        if "@" not in to:
            raise ValueError(f"{to!r} is not an email address")
        self.world.mails.append({"to": to, "subject": subject, "body": body})
        return {"sent": True}

    @writes
    def book_vacation(self, employee_id: str, days: int) -> dict[str, Any]:
        """Book vacation for an employee."""
        row = find(self.world.employees, employee_id, "employee")
        if days > row["vacation_days_left"]:
            raise ValueError(f"{employee_id} has {row['vacation_days_left']} days left")
        row["vacation_days_left"] -= days
        return {"employee_id": employee_id, "vacation_days_left": row["vacation_days_left"]}

    def get_flag(self, name: str) -> dict[str, Any]:
        """Return whether a feature of the web shop is on."""
        if name not in self.world.flags:
            raise ValueError(f"no flag is called {name!r}")
        return {"name": name, "on": self.world.flags[name]}

    def list_flags(self) -> dict[str, bool]:
        """List the features of the web shop that can be switched."""
        return self.world.flags

    @writes
    def set_flag(self, name: str, on: bool) -> dict[str, Any]:
        """Switch a feature of the web shop on or off."""
        if name not in self.world.flags:
            raise ValueError(f"no flag is called {name!r}")
        self.world.flags[name] = on
        return {"name": name, "on": on}

    def list_holidays(self, country: str) -> list[str]:
        """List the public holidays of a country in the rest of 2026, as dates."""
        return {"DE": ["2026-12-25", "2026-12-26"], "US": ["2026-11-26", "2026-12-25"]}.get(
            country, ["2026-12-25"]
        )


DEPARTMENTS = (Shop, Warehouse, Shipping, Finance, Support, Office)


def company_tools(world: World) -> list[Tool]:
    """Returns the tools of all departments."""
    return [made for department in DEPARTMENTS for made in department(world).tools()]

"""The tasks: a request in a person's words, a check of the final state, and an ideal solution.

The ideal solution exists twice: as one program for code mode, and as batches of calls for surfaces
on which the model calls tools itself. Checks compute the right answer from a fresh `World`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.model_tasks import library, tracker
from bench.model_tasks.world import Row, World

Call: TypeAlias = tuple[str, Row]
"""The name of a tool and its input. Tools of MCP servers are named `server.tool`."""

Solution: TypeAlias = Generator[list[Call], list[Any], str]
"""Yields batches of calls, gets their results (None for an error), and returns the answer."""

REFUND_LIMIT = 1500
"""The person who is asked approves refunds up to this amount, and every transfer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of all systems after a task, and the model's last message."""

    answer: str
    world: World
    issues: Mapping[str, Row]
    documents: Mapping[str, Row]

    def says(self, *facts: object) -> bool:
        """True if all facts are in the answer, whatever separates thousands or decimals."""
        plain = re.sub(r"(?<=\d)[,\s'](?=\d{3}\b)", "", self.answer)
        return all(re.search(rf"(?<![\w.]){re.escape(str(it))}(?![\w])", plain) for it in facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task.

    Attributes:
        depth: The class of the number of calls that a direct solution needs: 1, 3, 10 or 50.
        text: The request.
        check: Returns whether the outcome is right.
        program: The ideal program of code mode; it returns the answer.
        calls: The ideal solution by direct calls.
    """

    id: str
    depth: int
    text: str
    check: Callable[[Outcome], bool]
    program: str
    calls: Callable[[], Solution]


TASKS: dict[str, Task] = {}


def task(depth: int, text: str, program: str, check: Callable[[Outcome], bool]) -> Any:
    """Registers a task; the decorated generator is its solution by direct calls."""

    def add(calls: Callable[[], Solution]) -> Callable[[], Solution]:
        name = calls.__name__
        TASKS[name] = Task(
            id=name, depth=depth, text=text, check=check, program=program, calls=calls
        )
        return calls

    return add


def euros(cents: int) -> str:
    return f"{cents / 100:.2f}"


def pages(name: str, more: Row | None = None) -> Generator[list[Call], list[Any], list[Row]]:
    """Reads all pages of a list with cursors."""
    rows: list[Row] = []
    cursor: str | None = None
    while True:
        given = dict(more or {})
        if cursor is not None:
            given["cursor"] = cursor
        (page,) = yield [(name, given)]
        rows += page.get("items", page.get("issues"))
        cursor = page.get("next_cursor", page.get("next"))
        if cursor is None:
            return rows


LIST = """
const list = async (fn, input = {}) => {
  const rows = [];
  let cursor;
  do {
    const page = await fn(cursor ? {...input, cursor} : input);
    rows.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return rows;
};
"""
"""The loop over pages that programs have to write themselves."""

DATA = "const data = (r) => r.structuredContent;\n"


# ---- One call ----


@task(
    1,
    "What is the price of product P014, in euros?",
    'return (await tools.get_product({product_id: "P014"})).price_cents / 100',
    lambda end: any(
        end.says(shown)
        for cents in [World().products["P014"]["price_cents"]]
        for shown in (f"{cents / 100:g}", euros(cents))
    ),
)
def price() -> Solution:
    (product,) = yield [("get_product", {"product_id": "P014"})]
    return f"{product['price_cents'] / 100:g} euros"


@task(
    1,
    "Switch off express_checkout in the web shop.",
    'return await tools.set_flag({name: "express_checkout", on: false})',
    lambda end: end.world.flags == World().flags | {"express_checkout": False},
)
def switch_off() -> Solution:
    yield [("set_flag", {"name": "express_checkout", "on": False})]
    return "Done."


@task(
    1,
    "In which city does the customer with the address hana.fischer@example.net live?",
    'return (await tools.find_customer_by_email({email: "hana.fischer@example.net"})).city',
    lambda end: end.says(World().customers["C001"]["city"]),
)
def city_of_customer() -> Solution:
    (customer,) = yield [("find_customer_by_email", {"email": "hana.fischer@example.net"})]
    return customer["city"]


@task(
    1,
    'Add the note "call back on Monday" to order O0031.',
    'return await tools.add_order_note({order_id: "O0031", note: "call back on Monday"})',
    lambda end: end.world.orders["O0031"]["notes"] == ["call back on Monday"],
)
def order_note() -> Solution:
    yield [("add_order_note", {"order_id": "O0031", "note": "call back on Monday"})]
    return "Done."


@task(
    1,
    "How many support tickets are open at the moment?",
    "return (await tools.count_tickets({})).open",
    lambda end: end.says(sum(row["status"] == "open" for row in World().tickets.values())),
)
def open_tickets() -> Solution:
    (counts,) = yield [("count_tickets", {})]
    return str(counts["open"])


@task(
    1,
    'Create an issue of severity major with the title "checkout button hidden" in the tracker\'s '
    "project web, and tell me its key.",
    DATA + "return data(await MCP.tracker.createIssue("
    '{project: "web", title: "checkout button hidden", severity: "major"})).key',
    lambda end: (
        end.says("ISS-91")
        and end.issues["ISS-91"]["title"] == "checkout button hidden"
        and end.issues["ISS-91"]["severity"] == "major"
    ),
)
def new_issue() -> Solution:
    given = {"project": "web", "title": "checkout button hidden", "severity": "major"}
    (made,) = yield [("tracker.create_issue", given)]
    return made["key"]


# ---- Three calls ----


@task(
    3,
    'Send a mail with the subject "Order O0042" and the text "Thank you" to the customer who '
    "placed order O0042. Which tier do they have?",
    'const order = await tools.get_order({order_id: "O0042"});\n'
    "const who = await tools.get_customer({customer_id: order.customer_id});\n"
    'await tools.send_mail({to: who.email, subject: "Order O0042", body: "Thank you"});\n'
    "return who.tier",
    lambda end: (
        end.says(customer_of(World(), "O0042")["tier"])
        and [it["to"] for it in end.world.mails] == [customer_of(World(), "O0042")["email"]]
    ),
)
def thank_customer() -> Solution:
    (order,) = yield [("get_order", {"order_id": "O0042"})]
    (customer,) = yield [("get_customer", {"customer_id": order["customer_id"]})]
    mail = {"to": customer["email"], "subject": "Order O0042", "body": "Thank you"}
    yield [("send_mail", mail)]
    return customer["tier"]


def customer_of(world: World, order: str) -> Row:
    """Returns the customer of an order."""
    return world.customers[world.orders[order]["customer_id"]]


@task(
    3,
    'Transfer 1,250.00 euros from the reserve account to the travel account (purpose "fair"). '
    "What is the balance of the travel account afterwards, in euros?",
    "const accounts = await tools.list_accounts({});\n"
    "const id = (name) => accounts.find((it) => it.name === name).id;\n"
    'await tools.transfer_money({source: id("reserve"), target: id("travel"), '
    'amount_cents: 125000, purpose: "fair"});\n'
    'return ((await tools.get_balance({account_id: id("travel")})).balance_cents / 100).toFixed(2)',
    lambda end: (
        end.says(euros(World().accounts["A5"]["balance_cents"] + 125_000))
        and len(end.world.transfers) == 1
        and end.world.accounts["A4"]["balance_cents"]
        == World().accounts["A4"]["balance_cents"] - 125_000
    ),
)
def transfer() -> Solution:
    (accounts,) = yield [("list_accounts", {})]
    ids = {row["name"]: row["id"] for row in accounts}
    given = {"source": ids["reserve"], "target": ids["travel"], "amount_cents": 125_000}
    yield [("transfer_money", given | {"purpose": "fair"})]
    (account,) = yield [("get_balance", {"account_id": ids["travel"]})]
    return euros(account["balance_cents"])


MEETING_HOURS = {
    "Europe/Berlin": 8,
    "Europe/Paris": 8,
    "Europe/Lisbon": 9,
    "America/New_York": 14,
    "Asia/Tokyo": 0,
}


def meeting_start(world: World) -> str:
    """Returns 9:00 in the time zone of E07 on 2026-11-20, in UTC."""
    zone = world.employees["E07"]["time_zone"]
    clock = "03:30" if zone == "Asia/Kolkata" else f"{MEETING_HOURS[zone]:02}:00"
    return f"2026-11-20T{clock}:00Z"


@task(
    3,
    'Create a meeting "handover" of 30 minutes for employees E03 and E07 at 9 o\'clock in the '
    "morning of 2026-11-20, local time of E07.",
    'const who = await tools.get_employee({employee_id: "E07"});\n'
    'const hours = {"Europe/Berlin": "08:00", "Europe/Paris": "08:00", "Europe/Lisbon": "09:00", '
    '"America/New_York": "14:00", "Asia/Tokyo": "00:00", "Asia/Kolkata": "03:30"};\n'
    'return await tools.create_meeting({title: "handover", minutes: 30, '
    'attendee_ids: ["E03", "E07"], starts_at: `2026-11-20T${hours[who.time_zone]}:00Z`})',
    lambda end: any(
        row["title"] == "handover"
        and row["starts_at"].replace("+00:00", "Z").replace("Z", "") + "Z" == meeting_start(World())
        and row["attendee_ids"] == ["E03", "E07"]
        for row in end.world.meetings.values()
    ),
)
def handover() -> Solution:
    (who,) = yield [("get_employee", {"employee_id": "E07"})]
    assert who["id"] == "E07"
    given = {"title": "handover", "minutes": 30, "attendee_ids": ["E03", "E07"]}
    yield [("create_meeting", given | {"starts_at": meeting_start(World())})]
    return "Done."


RETURNS = "Rules for returns, part 2"


def returns_document() -> library.Document:
    """Returns the document that the task `document_deadline` asks for."""
    return next(it for it in library.make_documents().values() if it.title == RETURNS)


@task(
    3,
    f'Which deadline does the document "{RETURNS}" in the library name? Tag it with "checked".',
    "let found;\nfor (let page = 1; !found; page++) {\n"
    "  const {documents} = (await MCP.library.listDocuments({page})).structuredContent;\n"
    f'  found = documents.find((it) => it.title === "{RETURNS}");\n'
    "}\nconst {text} = (await MCP.library.getDocument({id: found.id})).structuredContent;\n"
    'await MCP.library.tagDocument({id: found.id, tag: "checked"});\n'
    r"return text.match(/deadline is \d+ days/)[0]",
    lambda end: (
        "checked" in end.documents[returns_document().id]["tags"]
        and end.says(re.findall(r"\d+", returns_document().text)[0])
    ),
)
def document_deadline() -> Solution:
    number, found = 0, None
    while found is None:
        number += 1
        (page,) = yield [("library.list_documents", {"page": number})]
        found = next((it["id"] for it in page["documents"] if it["title"] == RETURNS), None)
    (document,) = yield [("library.get_document", {"id": found})]
    yield [("library.tag_document", {"id": found, "tag": "checked"})]
    return re.findall(r"\d+ days", document["text"])[0]


@task(
    3,
    "Print the shipping label of order O0012. If that is not possible, say so with the words "
    '"not possible", and change nothing.',
    'await tools.search("print a shipping label");\nreturn "not possible"',
    lambda end: "not possible" in end.answer.lower() and end.world == World(),
)
def missing_tool() -> Solution:
    yield [("get_shipment", {"order_id": "O0012"})]
    return "That is not possible."


@task(
    3,
    'Refund 20 euros for order O0007 (reason "late"). If the refund is refused, add the note '
    '"refund refused" to the order instead.',
    'try {\n  return await tools.issue_refund({order_id: "O0007", amount_cents: 2000, '
    'reason: "late"});\n} catch (error) {\n'
    '  return await tools.add_order_note({order_id: "O0007", note: "refund refused"});\n}',
    lambda end: not end.world.refunds and end.world.orders["O0007"]["notes"] == ["refund refused"],
)
def refused_refund() -> Solution:
    given = {"order_id": "O0007", "amount_cents": 2000, "reason": "late"}
    (done,) = yield [("issue_refund", given)]
    assert done is None
    yield [("add_order_note", {"order_id": "O0007", "note": "refund refused"})]
    return "The refund was refused."


# ---- Ten calls ----


def urgent(world: World) -> list[str]:
    """Returns the open tickets of high priority."""
    return [
        key
        for key, row in world.tickets.items()
        if row["status"] == "open" and row["priority"] == "high"
    ]


def support_team(world: World) -> list[str]:
    return [key for key, row in world.employees.items() if row["team"] == "support"]


@task(
    10,
    "Assign all open tickets of high priority to the employees of the support team in turn: the "
    "ticket with the lowest id to the employee with the lowest id, and so on, beginning again "
    "after the last employee.",
    'const {tickets} = await tools.list_tickets({status: "open", priority: "high"});\n'
    'const team = await tools.list_employees({team: "support"});\n'
    "await Promise.all(tickets.map((it, n) => tools.assign_ticket("
    "{ticket_id: it.id, employee_id: team[n % team.length].id})));\nreturn tickets.length",
    lambda end: all(
        end.world.tickets[key]["assignee_id"]
        == support_team(World())[number % len(support_team(World()))]
        for number, key in enumerate(urgent(World()))
    ),
)
def assign_tickets() -> Solution:
    listed, team = yield [
        ("list_tickets", {"status": "open", "priority": "high"}),
        ("list_employees", {"team": "support"}),
    ]
    yield [
        ("assign_ticket", {"ticket_id": row["id"], "employee_id": team[n % len(team)]["id"]})
        for n, row in enumerate(listed["tickets"])
    ]
    return "Done."


MOVED = [f"P{number:03}" for number in range(1, 11)]


def short(world: World) -> list[str]:
    return [key for key in MOVED if world.stock[key, "north"] < 12]


@task(
    10,
    "Move 12 pieces each of the products P001 to P010 from the warehouse north to the warehouse "
    "south. Skip products of which north has fewer, and tell me which you skipped.",
    "const ids = Array.from({length: 10}, (_, n) => `P${String(n + 1).padStart(3, '0')}`);\n"
    "const moved = await Promise.allSettled(ids.map((product_id) => tools.transfer_stock("
    '{product_id, source: "north", target: "south", quantity: 12})));\n'
    'return ids.filter((_, n) => moved[n].status === "rejected")',
    lambda end: (
        end.says(*short(World()))
        and all(
            end.world.stock[key, "north"]
            == World().stock[key, "north"] - (0 if key in short(World()) else 12)
            for key in MOVED
        )
    ),
)
def move_stock() -> Solution:
    more = {"source": "north", "target": "south", "quantity": 12}
    done = yield [("transfer_stock", {"product_id": key} | more) for key in MOVED]
    skipped = [key for key, result in zip(MOVED, done, strict=True) if result is None]
    return f"Skipped: {', '.join(skipped)}"


def rewarded(world: World) -> set[str]:
    return {
        key
        for key, row in world.customers.items()
        if row["tier"] == "gold" and row["country"] in ("FR", "US", "PT")
    }


@task(
    10,
    "Create a voucher of 10 percent for every gold customer in France, Portugal and the US.",
    LIST + 'const all = await Promise.all(["FR", "PT", "US"].map((country) => '
    "list(tools.list_customers, {country})));\n"
    'const gold = all.flat().filter((it) => it.tier === "gold");\n'
    "await Promise.all(gold.map((it) => tools.create_voucher({customer_id: it.id, percent: 10})));"
    "\nreturn gold.length",
    lambda end: (
        sorted(row["customer_id"] for row in end.world.vouchers.values())
        == sorted(rewarded(World()))
        and all(row["percent"] == 10 for row in end.world.vouchers.values())
    ),
)
def vouchers() -> Solution:
    listed = yield [("list_customers", {"country": country}) for country in ("FR", "PT", "US")]
    gold = [row for page in listed for row in page["items"] if row["tier"] == "gold"]
    yield [("create_voucher", {"customer_id": row["id"], "percent": 10}) for row in gold]
    return f"{len(gold)} vouchers"


def critical(issues: Mapping[str, Row]) -> list[str]:
    return [
        key
        for key, row in issues.items()
        if row["state"] == "open" and row["severity"] == "critical" and row["project"] == "web"
    ]


@task(
    10,
    'Label all open critical issues of the tracker\'s project web with "urgent". How many are '
    "there?",
    DATA + "const found = [];\nlet cursor = null;\ndo {\n"
    '  const page = data(await MCP.tracker.listIssues({project: "web", state: "open", '
    "...(cursor ? {cursor} : {})}));\n"
    '  found.push(...page.issues.filter((it) => it.severity === "critical"));\n'
    "  cursor = page.next;\n} while (cursor);\n"
    'await Promise.all(found.map((it) => MCP.tracker.addLabel({key: it.key, label: "urgent"})));\n'
    "return found.length",
    lambda end: (
        end.says(len(critical(tracker.make_issues())))
        and [key for key, row in end.issues.items() if row["labels"] == ["urgent"]]
        == critical(tracker.make_issues())
    ),
)
def label_issues() -> Solution:
    rows = yield from pages("tracker.list_issues", {"project": "web", "state": "open"})
    keys = [row["key"] for row in rows if row["severity"] == "critical"]
    yield [("tracker.add_label", {"key": key, "label": "urgent"}) for key in keys]
    return f"{len(keys)} issues"


REFUNDED = [f"O{number:04}" for number in (3, 5, 8, 11, 14, 17, 20, 23)]


@task(
    10,
    f'Refund 10 euros each for the orders {", ".join(REFUNDED)} (reason "damaged").',
    f"return (await Promise.all({REFUNDED}.map((order_id) => tools.issue_refund("
    '{order_id, amount_cents: 1000, reason: "damaged"})))).length',
    lambda end: (
        sorted(row["order_id"] for row in end.world.refunds) == REFUNDED
        and {row["amount_cents"] for row in end.world.refunds} == {1000}
    ),
)
def refunds() -> Solution:
    more = {"amount_cents": 1000, "reason": "damaged"}
    yield [("issue_refund", {"order_id": order} | more) for order in REFUNDED]
    return "Done."


def revenue(world: World) -> dict[str, int]:
    """Returns the revenue of shipped and delivered orders in cents by country."""
    sums: dict[str, int] = defaultdict(int)
    for row in world.orders.values():
        if row["status"] in ("shipped", "delivered"):
            sums[world.customers[row["customer_id"]]["country"]] += row["total_cents"]
    return sums


@task(
    10,
    "What is the revenue of all shipped and delivered orders by country, in euros with cents?",
    LIST + 'const orders = (await Promise.all(["shipped", "delivered"].map((status) => '
    "list(tools.list_orders, {status})))).flat();\n"
    "const customers = await list(tools.list_customers);\n"
    "const country = Object.fromEntries(customers.map((it) => [it.id, it.country]));\n"
    "const sums = {};\nfor (const it of orders) {\n"
    "  const key = country[it.customer_id];\n"
    "  sums[key] = (sums[key] ?? 0) + it.total_cents;\n}\n"
    "return Object.entries(sums).map(([key, cents]) => `${key} ${(cents / 100).toFixed(2)}`)",
    lambda end: end.says(*map(euros, revenue(World()).values())),
)
def revenue_by_country() -> Solution:
    orders = yield from pages("list_orders", {"status": "shipped"})
    orders += yield from pages("list_orders", {"status": "delivered"})
    customers = yield from pages("list_customers")
    country = {row["id"]: row["country"] for row in customers}
    sums: dict[str, int] = defaultdict(int)
    for row in orders:
        sums[country[row["customer_id"]]] += row["total_cents"]
    return ", ".join(f"{key} {euros(cents)}" for key, cents in sums.items())


# ---- Fifty calls ----


def overdue(world: World) -> list[str]:
    return [
        key
        for key, row in world.invoices.items()
        if row["status"] == "unpaid" and row["due_on"] < "2026-09-01"
    ]


@task(
    50,
    "Send a reminder for every unpaid invoice that was due before 2026-09-01.",
    LIST + 'const unpaid = await list(tools.list_invoices, {status: "unpaid"});\n'
    'const late = unpaid.filter((it) => it.due_on < "2026-09-01");\n'
    "await Promise.all(late.map((it) => tools.send_reminder({invoice_id: it.id})));\n"
    "return late.length",
    lambda end: (
        [key for key, row in end.world.invoices.items() if row["reminders"] == 1]
        == overdue(World())
    ),
)
def reminders() -> Solution:
    unpaid = yield from pages("list_invoices", {"status": "unpaid"})
    late = [row["id"] for row in unpaid if row["due_on"] < "2026-09-01"]
    yield [("send_reminder", {"invoice_id": key}) for key in late]
    return f"{len(late)} reminders"


def lost(world: World) -> list[str]:
    return [
        key
        for key, row in world.shipments.items()
        if row["state"] == "lost" and row["carrier"] == "turtle"
    ]


@task(
    50,
    "Report every shipment that the carrier turtle has lost. How many are there?",
    LIST + 'const shipments = await list(tools.list_shipments, {carrier: "turtle"});\n'
    "const lost = [];\nfor (const {id} of shipments) {\n  for (;;) {\n    try {\n"
    '      if ((await tools.track_shipment({shipment_id: id})).state === "lost") lost.push(id);\n'
    "      break;\n    } catch (error) {\n"
    "      await new Promise((resume) => setTimeout(resume, 200));\n    }\n  }\n}\n"
    "await Promise.all(lost.map((id) => tools.report_lost_shipment({shipment_id: id})));\n"
    "return lost.length",
    lambda end: (
        end.says(len(lost(World())))
        and [key for key, row in end.world.shipments.items() if row.get("reported")]
        == lost(World())
    ),
)
def lost_shipments() -> Solution:
    rows = yield from pages("list_shipments", {"carrier": "turtle"})
    left, found = [row["id"] for row in rows], list[str]()
    while left:
        batch = left[:8]
        done = yield [("track_shipment", {"shipment_id": key}) for key in batch]
        answered = {row["id"]: row["state"] for row in done if row is not None}
        found += [key for key, state in answered.items() if state == "lost"]
        left = [key for key in left if key not in answered]
    yield [("report_lost_shipment", {"shipment_id": key}) for key in found]
    return f"{len(found)} shipments"


def weak(world: World) -> list[str]:
    return [key for key, row in world.sensors.items() if row["battery_percent"] < 10]


def warmest(world: World) -> str:
    return max(world.sensors, key=lambda key: world.sensors[key]["celsius"])


@task(
    50,
    "Which sensor measures the highest temperature, and which sensors have a battery under 10 %?",
    "const rows = await Promise.all((await tools.list_sensors({})).map((sensor_id) => "
    "tools.read_sensor({sensor_id})));\n"
    "return {warmest: rows.reduce((a, b) => (a.celsius > b.celsius ? a : b)).id, "
    "weak: rows.filter((it) => it.battery_percent < 10).map((it) => it.id)}",
    lambda end: end.says(warmest(World()), *weak(World())),
)
def read_sensors() -> Solution:
    (keys,) = yield [("list_sensors", {})]
    rows = yield [("read_sensor", {"sensor_id": key}) for key in keys]
    low = [row["id"] for row in rows if row["battery_percent"] < 10]
    return f"{max(rows, key=lambda row: row['celsius'])['id']}; {', '.join(low)}"


def scarce(world: World) -> list[str]:
    """Returns the products that have to be ordered."""
    return [
        key
        for key, row in world.products.items()
        if not row["discontinued"]
        and sum(count for (it, _), count in world.stock.items() if it == key)
        < 4 * row["reorder_level"]
    ]


@task(
    50,
    "Order 50 more of every product that is not discontinued and whose stock in all warehouses "
    "together is less than four times its reorder level. How many products are that?",
    LIST + "const products = (await list(tools.list_products)).filter((it) => !it.discontinued);\n"
    "const stocks = await Promise.all(products.map((it) => "
    "tools.get_stock({product_id: it.id})));\n"
    "const scarce = products.filter((it, n) => "
    "Object.values(stocks[n].stock).reduce((a, b) => a + b) < 4 * it.reorder_level);\n"
    "await Promise.all(scarce.map((it) => "
    "tools.reorder_product({product_id: it.id, quantity: 50})));\nreturn scarce.length",
    lambda end: (
        end.says(len(scarce(World())))
        and all(
            end.world.stock[key, "north"]
            == World().stock[key, "north"] + (50 if key in scarce(World()) else 0)
            for key in World().products
        )
    ),
)
def reorder() -> Solution:
    products = yield from pages("list_products")
    offered = [row for row in products if not row["discontinued"]]
    stocks = yield [("get_stock", {"product_id": row["id"]}) for row in offered]
    few = [
        row["id"]
        for row, has in zip(offered, stocks, strict=True)
        if sum(has["stock"].values()) < 4 * row["reorder_level"]
    ]
    yield [("reorder_product", {"product_id": key, "quantity": 50}) for key in few]
    return f"{len(few)} products"


def outdated() -> list[str]:
    """Returns the documents that have to be archived."""
    return [
        key
        for key, it in library.make_documents().items()
        if it.year <= 2021 and int(re.findall(r"\d+", it.text)[0]) > 30
    ]


@task(
    50,
    "Archive the documents in the library that are from 2021 or earlier and whose text names a "
    "deadline of more than 30 days.",
    "const old = [];\nfor (let page = 1, pages = 1; page <= pages; page++) {\n"
    "  const found = (await MCP.library.listDocuments({page})).structuredContent;\n"
    "  pages = found.pages;\n"
    "  old.push(...found.documents.filter((it) => it.year <= 2021));\n}\n"
    "const texts = await Promise.all(old.map(({id}) => MCP.library.getDocument({id})));\n"
    "const late = old.filter((_, n) => "
    r"Number(texts[n].structuredContent.text.match(/(\d+) days/)[1]) > 30);"
    "\nawait Promise.all(late.map(({id}) => MCP.library.archiveDocument({id})));\n"
    "return late.length",
    lambda end: (
        [key for key, row in end.documents.items() if "archived" in row["tags"]] == outdated()
    ),
)
def archive_documents() -> Solution:
    first = yield [("library.list_documents", {"page": page}) for page in range(1, 5)]
    old = [row["id"] for page in first for row in page["documents"] if row["year"] <= 2021]
    texts = yield [("library.get_document", {"id": key}) for key in old]
    late = [row["id"] for row in texts if int(re.findall(r"(\d+) days", row["text"])[0]) > 30]
    yield [("library.archive_document", {"id": key}) for key in late]
    return f"{len(late)} documents"


def loyal(world: World) -> list[str]:
    """Returns the customers who get a better tier."""
    spent: dict[str, int] = defaultdict(int)
    for row in world.orders.values():
        if row["status"] != "cancelled":
            spent[row["customer_id"]] += row["total_cents"]
    return [
        key
        for key, row in world.customers.items()
        if row["tier"] == "basic" and spent[key] > 200_000
    ]


@task(
    50,
    "Give the tier plus to all basic customers whose orders, without cancelled ones, add up to "
    "more than 2,000 euros.",
    LIST + "const [orders, customers] = await Promise.all("
    "[list(tools.list_orders), list(tools.list_customers)]);\n"
    "const spent = {};\nfor (const it of orders) {\n"
    '  if (it.status !== "cancelled") '
    "spent[it.customer_id] = (spent[it.customer_id] ?? 0) + it.total_cents;\n}\n"
    'const loyal = customers.filter((it) => it.tier === "basic" && spent[it.id] > 200000);\n'
    "await Promise.all(loyal.map((it) => "
    'tools.update_customer_tier({customer_id: it.id, tier: "plus"})));\nreturn loyal.length',
    lambda end: all(
        row["tier"] == ("plus" if key in loyal(World()) else World().customers[key]["tier"])
        for key, row in end.world.customers.items()
    ),
)
def loyal_customers() -> Solution:
    orders = yield from pages("list_orders")
    customers = yield from pages("list_customers")
    spent: dict[str, int] = defaultdict(int)
    for row in orders:
        if row["status"] != "cancelled":
            spent[row["customer_id"]] += row["total_cents"]
    found = [
        row["id"] for row in customers if row["tier"] == "basic" and spent[row["id"]] > 200_000
    ]
    yield [("update_customer_tier", {"customer_id": key, "tier": "plus"}) for key in found]
    return f"{len(found)} customers"


def stale(world: World) -> list[str]:
    return [
        key
        for key, row in world.tickets.items()
        if row["status"] == "open" and row["priority"] != "high" and row["hours_waiting"] > 60
    ]


@task(
    50,
    "Close every open ticket of low or normal priority that waits for more than 60 hours, with the "
    'comment "stale".',
    'const first = await tools.list_tickets({status: "open"});\n'
    "const rest = await Promise.all(Array.from({length: first.pages - 1}, (_, n) => "
    'tools.list_tickets({status: "open", page: n + 2})));\n'
    "const old = [first, ...rest].flatMap((it) => it.tickets).filter("
    '(it) => it.priority !== "high" && it.hours_waiting > 60);\n'
    "await Promise.all(old.map((it) => "
    'tools.close_ticket({ticket_id: it.id, comment: "stale"})));\nreturn old.length',
    lambda end: (
        [key for key, row in end.world.tickets.items() if row["comments"] == ["stale"]]
        == stale(World())
        and all(end.world.tickets[key]["status"] == "closed" for key in stale(World()))
    ),
)
def stale_tickets() -> Solution:
    (first,) = yield [("list_tickets", {"status": "open"})]
    more = range(2, first["pages"] + 1)
    rest = yield [("list_tickets", {"status": "open", "page": page}) for page in more]
    old = [
        row["id"]
        for page in (first, *rest)
        for row in page["tickets"]
        if row["priority"] != "high" and row["hours_waiting"] > 60
    ]
    yield [("close_ticket", {"ticket_id": key, "comment": "stale"}) for key in old]
    return f"{len(old)} tickets"

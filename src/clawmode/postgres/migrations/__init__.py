"""The schema in numbered steps: `NNN_name.sql`, each applied once, in one transaction with others.

The first line of a step says which builds still understand the schema afterwards: those that know
at least the step `oldest_reader`. `cm_meta` has the last step, and the highest of those numbers.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from clawmode.exceptions import StoreUnavailable
from clawmode.postgres.connection import SCHEMA, Connection
from clawmode.postgres.reasons import STORE

_NAME = re.compile(r"(\d{3})_\w+\.sql")
_FIRST = re.compile(r"-- oldest_reader: (\d+)\n")


class Step(NamedTuple):
    """One file of statements."""

    number: int
    oldest_reader: int
    text: str


@cache
def steps() -> tuple[Step, ...]:
    """Returns all steps that this build knows, in order."""
    found: list[Step] = []
    for file in files("clawmode.postgres.migrations").iterdir():
        if name := _NAME.fullmatch(file.name):
            text = file.read_text("utf-8")
            first = _FIRST.match(text)
            assert first is not None, f"{file.name} does not say its oldest reader"
            found.append(Step(int(name[1]), int(first[1]), text))
    return tuple(sorted(found))


def version() -> int:
    """Returns the number of the last step that this build knows."""
    return steps()[-1].number


class Level(NamedTuple):
    """The schema of a database: 0 and 0 if there is none."""

    version: int
    oldest_reader: int

    def check(self) -> None:
        """Checks that this build can use the database.

        Raises:
            StoreUnavailable: It is older than the schema allows, or the schema is too old.
        """
        if self.oldest_reader > version():
            raise StoreUnavailable(
                f"{STORE} was changed by a newer clawmode: it needs a build that knows version "
                f"{self.oldest_reader} of the schema, and this one knows {version()}. Nothing was "
                "changed: upgrade this node."
            )
        if self.version < version():
            raise StoreUnavailable(
                f"{STORE} has version {self.version} of the schema, and this build needs "
                f"{version()}: run `clawmode state migrate`."
            )


def level(connection: Connection) -> Level:
    """Returns the schema of a database.

    Raises:
        StoreUnavailable: Somebody else has made a schema with our name.
    """
    row = connection.execute(
        "select pg_catalog.pg_has_role(n.nspowner, 'member'), pg_catalog.to_regclass(%s) is null"
        " from pg_catalog.pg_namespace n where n.nspname = %s",
        (f"{SCHEMA}.cm_meta", SCHEMA),
    ).fetchone()
    if row is None:
        return Level(0, 0)
    ours, empty = row
    if not ours:
        usable = connection.execute(
            "select pg_catalog.has_schema_privilege(%s, 'usage')"
            " and not pg_catalog.has_schema_privilege('public', %s, 'create')",
            (SCHEMA, SCHEMA),
        ).fetchone()
        if usable != (True,) or empty:
            raise StoreUnavailable(
                f"The schema {SCHEMA!r} of the database belongs to another user, who may have put "
                "something else in its place: drop the schema, or log in as its owner."
            )
    if empty:
        return Level(0, 0)
    found = connection.execute("select version, oldest_reader from clawmode.cm_meta").fetchone()
    return Level(*found) if found else Level(0, 0)


def migrate(connection: Connection, *, force: bool = False) -> Level:
    """Applies the steps that the database lacks. Idempotent; several processes may try at once.

    Args:
        connection: A connection of the owner of the schema, or of one who may create the schema.
        force: Whether to go on though living nodes could not use the database afterwards.

    Raises:
        StoreUnavailable: The schema is newer, or a living node would be shut out.
    """
    with connection.transaction():
        connection.execute("set local statement_timeout = 0")
        connection.execute("set local lock_timeout = '30s'")
        connection.execute("select pg_catalog.pg_advisory_xact_lock(20300, 0)")
        before = level(connection)
        if before.oldest_reader > version():
            before.check()
        pending = [step for step in steps() if step.number > before.version]
        if not pending:
            return before
        oldest = max(step.oldest_reader for step in pending)
        if before.version and not force:
            _check_nodes(connection, oldest)
        connection.execute("create schema if not exists clawmode")
        connection.execute("revoke all on schema clawmode from public")
        connection.execute("set local search_path = clawmode, pg_catalog, pg_temp")
        for step in pending:
            # Our own file: the driver wants to know that no value is pasted into it.
            connection.execute(step.text.encode())
        rights = files("clawmode.postgres.migrations").joinpath("rights.sql")
        connection.execute(rights.read_bytes())
        after = Level(pending[-1].number, max(oldest, before.oldest_reader))
        connection.execute(
            "insert into clawmode.cm_meta (version, oldest_reader) values (%s, %s)"
            " on conflict (one) do update set version = excluded.version,"
            " oldest_reader = excluded.oldest_reader",
            after,
        )
    return after


def _check_nodes(connection: Connection, oldest: int) -> None:
    row = connection.execute(
        "select pg_catalog.count(*), pg_catalog.min(n.version), pg_catalog.min(n.name)"
        " from clawmode.cm_nodes n where n.dead is null and n.version < %s"
        " and n.beat + n.lease > pg_catalog.clock_timestamp()",
        (oldest,),
    ).fetchone()
    if row and row[0]:
        count, known, name = row
        raise StoreUnavailable(
            f"{count} living nodes (such as {name}) know only version {known} of the schema, and "
            f"could not go on after the upgrade to {version()}: stop them first, or run "
            "`clawmode state migrate --force`."
        )

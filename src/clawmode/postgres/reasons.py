"""Why PostgreSQL could not be used, in our words: its own name users, addresses and data."""

STORE = "The store of waiting programs"

WHY = {
    "TLS": "{what} offers no TLS that we accept: only a server on this machine may do without.",
    "CERT": "{what} shows a certificate that cannot be verified: check the host name in the URL, "
    "and that sslrootcert names the file with the authority of the certificate.",
    "POOL": "{what} is behind PgBouncer, which drops settings and notifications: set "
    "`postgres: {{ listen: false }}` (`listen=False`), or name the server itself.",
    "28": "{what} rejects our login: check the user and the password of the database.",
    "3D": "{what} does not exist: create the database that the URL names.",
    "42501": "{what} denies us the right to do that: grant it to the user of the database.",
    "42": "{what} lacks our tables or functions: run `clawmode state migrate`.",
    "3F": "{what} lacks our tables or functions: run `clawmode state migrate`.",
    "25006": "{what} can only be read: the URL must name the primary server.",
    "53100": "{what} cannot be written: its disk is full.",
    "53300": "{what} accepts no more connections: try again.",
    "55P03": "{what} is locked by another process: try again.",
    "57014": "{what} took too long: try again.",
}
"""Reasons by the beginning of an SQLSTATE; the longest that fits is used."""

REFUSALS = {
    "unsupported startup parameter": "POOL",
    "client certificate": "28",
    "certificate ": "CERT",
    "starting up": "08",
    "shutting down": "08",
    "authentication failed": "28",
    "no password supplied": "28",
    "pg_hba.conf": "28",
    "role": "28",
    "does not exist": "3D",
    "SSL": "TLS",
    "TLS": "TLS",
    "read-only": "25006",
    "too many": "53300",
}
"""The words of a connection that failed, which has no SQLSTATE, and what comes closest. The message
itself has names and addresses."""

REPEAT = ("08", "40", "57P")
"""A statement that failed so is repeated: the connection or the server went away, or a deadlock."""


def explain(state: str, text: str, what: str = STORE) -> str:
    """Returns why a statement or a connection failed.

    Args:
        state: The SQLSTATE; empty if there is none.
        text: The message of libpq or the server, of which nothing is shown.
        what: What failed.
    """
    if not state and any(word in text for word in ("FATAL", "SSL", "TLS", "certificate ")):
        state = next((code for words, code in REFUSALS.items() if words in text), "")
    found = [prefix for prefix in WHY if state.startswith(prefix)]
    if found:
        return WHY[max(found, key=len)].format(what=what)
    if not state or state.startswith(REPEAT):
        return f"{what} cannot be reached: try again."
    return f"{what} cannot be used (SQLSTATE {state})."

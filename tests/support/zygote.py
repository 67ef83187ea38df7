"""Starts the command in processes that have imported the providers' libraries already.

To import them takes seconds, of which a test has few. An order is a line of JSON on stdin; each
becomes a process in a session of its own, and how it ends is told in a pipe.
"""

import gc
import json
import os
import resource
import sys
from typing import Any

import rich.live
import rich.table

import clawmode.app.servers
import clawmode.gateway.command
import clawmode.gateway.server
import clawmode.models.direct
import clawmode.terminal.agent_listings
import clawmode.terminal.local_turn
from clawmode.commands.cli import main

LOADED = (rich, clawmode)
"""All that commands would import one after the other."""


def serve() -> None:
    """Takes orders until there are no more."""
    gc.freeze()  # else each process would look at all of it before it ends
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    print("ready", flush=True)
    for line in orders:
        if os.fork():
            os.wait()
        elif os.fork():
            os._exit(0)  # so that nobody has to wait for the other
        else:
            orders.close()
            order = json.loads(line)
            if child := os.fork():
                watch(child, order["told"])
            else:
                obey(order)
            return


def watch(child: int, path: str) -> None:
    """Tells how it ends."""
    _, status = os.waitpid(child, 0)
    tell(path, os.waitstatus_to_exitcode(status))
    os._exit(0)


def tell(path: str, number: int) -> None:
    with open(path, "w", encoding="utf-8") as told:
        told.write(f"{number}\n")


def obey(order: dict[str, Any]) -> None:
    """Becomes the command."""
    os.setsid()
    for fd, path in enumerate(order["streams"]):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if path.startswith("/dev/pts/") or fd == 0:
            # A terminal that is opened for both becomes that of the session.
            flags = os.O_RDWR
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    tell(order["told"], os.getpid())
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    if order.get("files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["files"], order["files"]))
    sys.path[0] = ""
    sys.argv = ["clawmode", *order["arguments"]]
    main()


if __name__ == "__main__":
    serve()

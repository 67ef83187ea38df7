"""Runs Python programs in processes that have imported all libraries already.

The imports of a command take seconds of CPU, a fork takes milliseconds. A program can be started in
two ways: by a line of JSON on stdin, which names files or a terminal for its streams, or by
`forked.py`, a program that hands over its own streams through the socket that `argv[1]` names.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from typing import Any

PRELOADED = (
    "acp.stdio",
    "clawmode.app.servers",
    "clawmode.commands.cli",
    "clawmode.gateway.command",
    "clawmode.gateway.server",
    "clawmode.mcp.server",
    "clawmode.models.anthropic_sdk",
    "clawmode.models.openai_sdk",
    "clawmode.plugins.install",
    "clawmode.terminal.acp_agent",
    "clawmode.terminal.agent_listings",
    "clawmode.terminal.doctor",
    "clawmode.terminal.local_turn",
    "clawmode.terminal.mcp_face",
    "mcp.client.stdio",
    "rich.live",
    "rich.table",
)


def serve(path: str) -> None:
    """Start programs until stdin is closed."""
    for name in PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):  # the environment is older than an extra
            importlib.import_module(name)
    gc.freeze()  # else each process would look at all of it before it ends
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    orders, poll = os.dup(0), select.poll()
    for each in (orders, listener):
        poll.register(each, select.POLLIN)
    print("ready", flush=True)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        connection = None
        order: dict[str, Any] = {}
        if orders not in ready:
            connection, _ = listener.accept()
        elif line := read_line(orders):
            order = json.loads(line)
        else:
            return
        if os.fork():
            os.wait()
            if connection is not None:
                connection.close()
        elif os.fork():
            os._exit(0)  # so that nobody has to wait for the other
        else:
            listener.close()
            os.close(orders)
            begin(order, connection)
            return


def read_line(descriptor: int) -> bytes:
    """Read one line and no more, so that the descriptor tells whether there is another."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line


def begin(order: dict[str, Any], connection: socket.socket | None) -> None:
    """Fork once more: the child becomes the program, the parent reports how the child ends."""
    if connection is not None:
        order = receive(connection)
    if child := os.fork():
        if connection is None:
            _, status = os.waitpid(child, 0)
            tell(order["told"], os.waitstatus_to_exitcode(status))
        else:
            for descriptor in order["streams"]:
                os.close(descriptor)
            attend(child, connection)
        os._exit(0)
    if connection is not None:
        connection.close()
    become(order)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read an order of `forked.py`; its streams are descriptors."""
    data, streams, _, _ = socket.recv_fds(connection, 65_536, 3)
    while not data.endswith(b"\n"):
        if not (more := connection.recv(65_536)):
            os._exit(1)  # it was killed before it had sent all
        data += more
    return {**json.loads(data), "streams": streams}


def attend(child: int, connection: socket.socket) -> None:
    """Pass on signals until the child has ended; kill the child if `forked.py` is gone."""
    ended, poll = os.pidfd_open(child), select.poll()
    for each in (ended, connection):
        poll.register(each, select.POLLIN)
    while True:
        if ended in [descriptor for descriptor, _ in poll.poll()]:
            _, status = os.waitpid(child, 0)
            with contextlib.suppress(ConnectionError):  # `forked.py` was killed meanwhile
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            return
        for number in connection.recv(16) or b"\0":
            os.kill(child, number or signal.SIGKILL)


def tell(path: str, number: int) -> None:
    with open(path, "w", encoding="utf-8") as told:
        told.write(f"{number}\n")


def become(order: dict[str, Any]) -> None:
    """Run the program that is ordered, as if an interpreter had started with it."""
    os.setsid()
    for descriptor, stream in enumerate(order["streams"]):
        opened = stream if isinstance(stream, int) else open_stream(descriptor, stream)
        os.dup2(opened, descriptor)
        if opened > 2:
            os.close(opened)
    renew_streams()
    if told := order.get("told"):
        tell(told, os.getpid())
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    if limit := order.get("files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    program, *arguments = order["arguments"]
    if program == "-m":
        import clawmode.__main__
        from clawmode.commands.cli import main

        sys.path[0] = ""
        sys.argv = ["clawmode" if told else clawmode.__main__.__file__, *arguments[1:]]
        main()
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


def open_stream(descriptor: int, path: str) -> int:
    # A terminal that is opened for both becomes that of the session.
    both = path.startswith("/dev/pts/") or descriptor == 0
    flags = os.O_RDWR if both else os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.open(path, flags, 0o600)


def renew_streams() -> None:
    """Make the objects for the streams anew: terminals are buffered by lines, pipes are not."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
    sys.stderr = open(
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


if __name__ == "__main__":
    serve(sys.argv[1])

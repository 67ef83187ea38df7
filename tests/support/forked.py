"""Stands in for `python`: has the zygote run a program with the streams of this process.

`python -I -S forked.py SOCKET -m clawmode …` or `… SOCKET PROGRAM.py …`. It ends as the program
ends, passes on the signals that ask for an end, and the program is killed if this process is.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main(path: str, *arguments: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    order = {"arguments": arguments, "cwd": os.getcwd(), "environment": dict(os.environ)}
    data = json.dumps(order).encode() + b"\n"
    sent = socket.send_fds(connection, [data[:65_536]], [0, 1, 2])
    connection.sendall(data[sent:])
    for number in PASSED_ON:  # not before: it would come before the order, or into its middle
        signal.signal(number, lambda number, frame: connection.sendall(bytes([number])))
    for stream in (0, 1, 2):
        os.close(stream)
    status = int(connection.recv(16) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main(*sys.argv[1:])

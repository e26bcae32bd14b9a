"""Inside a sandbox without network: the model's one port on loopback, carried out by a Unix socket.

Run by path with the bare interpreter, around the agent's command:

    netgate.py ADDRESS PORT SOCKET -- COMMAND ...

It exits as the command does (128 + n for signal n). Only bytes pass: a TLS connection is the agent's with the
model, and is neither ended nor read here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

BLOCK = 65536


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction; its end is passed on."""
    with contextlib.suppress(OSError):
        while block := source.recv(BLOCK):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def join(left: socket.socket, right: socket.socket) -> None:
    """Carry both directions until both have ended."""
    with left, right:
        other = threading.Thread(target=pump, args=(left, right), daemon=True)
        other.start()
        pump(right, left)
        other.join()


def carry(client: socket.socket, path: str) -> None:
    """One connection of the agent."""
    outer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        outer.connect(path)
    except OSError:
        client.close()
        outer.close()
        return
    join(client, outer)


def accept(listener: socket.socket, path: str) -> None:
    """Serve for ever."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=carry, args=(client, path), daemon=True).start()


def main() -> None:
    """Entry point."""
    address, port, path = sys.argv[1:4]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, int(port)))
    listener.listen(64)
    threading.Thread(target=accept, args=(listener, path), daemon=True).start()
    command = sys.argv[sys.argv.index("--") + 1 :]
    try:
        process = subprocess.Popen(command, close_fds=True)
    except OSError as error:
        print(f"netgate: {error.strerror}: {command[0]}", file=sys.stderr)
        os._exit(127)
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, lambda number, _: process.send_signal(number))
    code = process.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()

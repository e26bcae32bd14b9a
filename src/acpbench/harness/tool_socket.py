"""Tools for an agent that must not see the evaluator's files: the agent's side of a Unix socket.

The collector listens outside the sandbox with the run's context (:mod:`acpbench.harness.tool_gate`) and
starts one server process a connection. Inside, ``acp-bench mcp``, ``tool call`` and ``tool serve`` find
``ACPBENCH_TOOL_SOCKET`` and only pass bytes on: they hold no context, no label, no key.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from acpbench.core.errors import InputError

SOCKET_VARIABLE = "ACPBENCH_TOOL_SOCKET"
SERVICES = {"mcp": ["mcp"], "serve": ["tool", "serve"]}
"""First line of a connection → the command that serves it."""
MAX_CONNECTIONS = 32
"""Servers of one run at a time."""
_BLOCK = 65536


def socket_path() -> str | None:
    """The socket this process is to use instead of a run context, if there is one."""
    return os.environ.get(SOCKET_VARIABLE) or None


@contextlib.contextmanager
def _connected(path: str, service: str) -> Iterator[socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            connection.connect(path)
            connection.sendall(service.encode() + b"\n")
        except OSError as error:
            raise InputError(f"the run's tool server cannot be reached ({error.strerror})") from None
        yield connection


def relay(path: str, service: str) -> int:
    """Pass standard input to the socket and the socket to standard output, until either ends.

    Returns:
        0 when this side ended first, 1 when the server did.
    """
    with _connected(path, service) as connection:
        finished = threading.Event()

        def upward() -> None:
            with contextlib.suppress(OSError):
                while block := os.read(0, _BLOCK):
                    connection.sendall(block)
            finished.set()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

        threading.Thread(target=upward, daemon=True).start()
        with contextlib.suppress(OSError):
            while block := connection.recv(_BLOCK):
                view = memoryview(block)
                while view:
                    view = view[os.write(1, view) :]
        return 0 if finished.is_set() else 1


def ask(path: str, line: bytes) -> bytes:
    """One call over the socket: a line up, a line back.

    Raises:
        InputError: the server cannot be reached, or is gone before it answered.
    """
    with _connected(path, "serve") as connection:
        connection.sendall(line + b"\n")
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            block = connection.recv(_BLOCK)
            if not block:
                raise InputError("the run's tool server ended before it answered")
            answer += block
        return bytes(answer)

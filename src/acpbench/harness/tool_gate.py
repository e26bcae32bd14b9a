"""The collector's side of the tool socket: starts a server process a connection, and is a witness of it.

The agent's side (``acp-bench mcp``, ``tool call``, ``tool serve`` with ``ACPBENCH_TOOL_SOCKET``) only
passes bytes on, so context, labels, log and keys lie outside what an agent can reach. The gate sees which
sessions asked for the tools, and how a server ended when it ended before its client.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acpbench.core.files import sha256_json
from acpbench.harness.tool_socket import MAX_CONNECTIONS, SERVICES, SOCKET_VARIABLE

SERVER = (sys.executable, "-m", "acpbench.cli.main")
_HELLO_BYTES = 16
_HELLO_TIMEOUT_S = 10.0
_STOP_GRACE_S = 5.0
_BLOCK = 65536
_SNIFFED_LINE_BYTES = 8 * 1024 * 1024


@dataclass
class Session:
    """One connection. ``server_end``: how its server ended, when the client had not gone first."""

    service: str
    listed: bool = False
    tools: list[Any] | None = None
    server_end: str | None = None
    calls: int = 0


class ToolGate:
    """Listens on a Unix socket; use as a context manager."""

    def __init__(
        self,
        path: Path,
        environment: Mapping[str, str],
        errors: Path,
        cwd: Path,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen.

        Args:
            path: the socket.
            environment: of the servers.
            errors: file that takes their standard error.
            cwd: their working directory.
            on_answer: called before an answer goes to the client, so that the log is seen before an agent
                that can reach it knows that there is something to edit.
        """
        self.path, self.cwd, self.on_answer = path, cwd, on_answer
        self.environment = {name: value for name, value in environment.items() if name != SOCKET_VARIABLE}
        self.sessions: list[Session] = []
        self._errors = open(errors, "ab")  # noqa: SIM115  (closed with the gate)
        self._lock = threading.Lock()
        self._closing = False
        self._children: set[subprocess.Popen[bytes]] = set()
        self._threads: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)
        self._socket.listen(MAX_CONNECTIONS)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> ToolGate:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it witnessed --

    def mark(self) -> int:
        """Number of sessions so far: what a pre-flight opened is told from what the agent opens."""
        with self._lock:
            return len(self.sessions)

    def listed(self, since: int = 0) -> int:
        """Sessions that asked for the tools."""
        return sum(session.listed for session in self.sessions[since:])

    def died(self, since: int = 0) -> str | None:
        """How a server ended that its client still wanted; None when none did."""
        ends = [session.server_end for session in self.sessions[since:] if session.server_end]
        return ends[-1] if ends else None

    def calls_after_death(self, since: int = 0) -> bool:
        """Whether a later session called a tool after a server had died."""
        sessions = self.sessions[since:]
        dead = max(
            (place for place, session in enumerate(sessions) if session.server_end), default=len(sessions)
        )
        return any(session.calls for session in sessions[dead + 1 :])

    def serving(self) -> bool:
        """Whether a server is at a client's service now."""
        with self._lock:
            return bool(self._children)

    def tools_digest(self) -> str | None:
        """Hash of the tools as the first session was offered them: names, schemas, hints."""
        offered = next((session.tools for session in self.sessions if session.tools), None)
        return None if offered is None else sha256_json(offered)

    # -- serving --

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            service = _hello(connection)
            with self._lock:
                if service is None or self._closing or len(self._children) >= MAX_CONNECTIONS:
                    return
                session = Session(service)
                child = subprocess.Popen(
                    [*SERVER, *SERVICES[service]],
                    cwd=self.cwd,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    start_new_session=True,
                )
                self._children.add(child)
                self.sessions.append(session)
            client_gone = threading.Event()
            upward = threading.Thread(
                target=self._upward, args=(connection, child, session, client_gone), daemon=True
            )
            upward.start()
            self._downward(connection, child, session)
            left_first = client_gone.is_set() or self._closing
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            _end(child)
            if not left_first:
                session.server_end = _how(child)
            upward.join(_STOP_GRACE_S)
            with self._lock:
                self._children.discard(child)

    def _upward(
        self,
        connection: socket.socket,
        child: subprocess.Popen[bytes],
        session: Session,
        client_gone: threading.Event,
    ) -> None:
        """Client to server; requests for the list of tools, and calls, are noted."""
        assert child.stdin is not None
        tail = b""
        with contextlib.suppress(OSError, ValueError):
            while block := connection.recv(_BLOCK):
                seen = tail + block
                session.listed = session.listed or b'"tools/list"' in seen
                session.calls += (
                    seen.count(b'"tools/call"') if session.service == "mcp" else block.count(b"\n")
                )
                tail = seen[-len(b'"tools/list"') + 1 :]
                child.stdin.write(block)
                child.stdin.flush()
            client_gone.set()
        with contextlib.suppress(OSError, ValueError):
            child.stdin.close()

    def _downward(self, connection: socket.socket, child: subprocess.Popen[bytes], session: Session) -> None:
        """Server to client; the first answer that lists tools is kept."""
        assert child.stdout is not None
        line = b""
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(child.stdout.fileno(), _BLOCK):
                if session.listed and session.tools is None:
                    line = (line + block)[-_SNIFFED_LINE_BYTES:]
                    *whole, line = line.split(b"\n")
                    session.tools = next(filter(None, map(_tools_of, whole)), None)
                self.on_answer()
                connection.sendall(block)

    def close(self) -> None:
        """Stop listening, end every server, take the socket away."""
        with self._lock:
            self._closing = True
            children = list(self._children)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for child in children:
            _end(child)
        for thread in self._threads:
            thread.join(_STOP_GRACE_S)
        self._errors.close()


def _tools_of(line: bytes) -> list[Any] | None:
    """The tools in an answer of the server, if it is one."""
    try:
        tools = json.loads(line)["result"]["tools"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tools if isinstance(tools, list) else None


def _hello(connection: socket.socket) -> str | None:
    """The service that a connection asks for; what follows the line belongs to the server."""
    connection.settimeout(_HELLO_TIMEOUT_S)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _HELLO_BYTES:
            byte = connection.recv(1)
            if not byte:
                return None
            line += byte
    except OSError:
        return None
    connection.settimeout(None)
    service = line.strip().decode("ascii", "replace")
    return service if service in SERVICES else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let a server end by itself once its input is closed, then TERM, then KILL its group."""
    with contextlib.suppress(OSError, ValueError):
        child.stdin.close()  # type: ignore[union-attr]
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_GRACE_S)
            return


def _how(child: subprocess.Popen[bytes]) -> str:
    """How a server ended, in words."""
    code = child.returncode
    if code is not None and code < 0:
        number = -code
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        return f"was ended by {name}"
    return f"ended with exit code {code}"

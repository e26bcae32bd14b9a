"""Ask an MCP server over standard streams for its tools, before an agent is launched on it.

The messages are written by hand: a pre-flight must see what the server really prints, and must not inherit an
environment that the agent will not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from acpbench.core.errors import InputError

PROTOCOL_VERSION = "2025-06-18"
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_PAGES = 100
_GRACE_S = 2.0
_TOLD_CHARS = 300


def probe(
    command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str], timeout_s: float
) -> list[str]:
    """Start the server, shake hands, list its tools, end it.

    Args:
        command: the server's command line.
        env: its whole environment; nothing is added.
        cwd: its working directory.
        timeout_s: for all of it.

    Returns:
        Names of the tools in the server's order.

    Raises:
        InputError: the server does not start, ends, prints something else than the protocol, refuses, answers
            too late or offers no tool; the reason holds the end of what it wrote to standard error.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise InputError(f"the MCP server does not start ({error})", file=command[0]) from None
        try:
            return _Session(process, time.monotonic() + timeout_s, timeout_s).tools()
        except _Unusable as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            raise InputError(f"{error}{_said(process, errors)}", file=Path(command[0]).name) from None
        finally:
            _stop(process)


class _Unusable(Exception):
    """Why the server cannot be used."""


class _Session:
    """One conversation with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], deadline_s: float, timeout_s: float) -> None:
        self._process, self._deadline_s, self._timeout_s = process, deadline_s, timeout_s
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._next_id = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self._process.stdout.readline(MAX_LINE_BYTES):
                self._lines.put(line)
        self._lines.put(None)

    def tools(self) -> list[str]:
        """Names of all tools, page by page."""
        self._ask(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {},
                "clientInfo": {"name": "acp-bench-probe", "version": "1"},
            },
        )
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        names: list[str] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise _Unusable("the MCP server's list of tools has another form")
            names += [str(entry.get("name")) for entry in listed if isinstance(entry, dict)]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if not names:
            raise _Unusable("the MCP server offers no tool")
        return names

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise _Unusable("the MCP server ended") from None

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._next_id += 1
        self._send({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params})
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, self._deadline_s - time.monotonic()))
            except queue.Empty:
                raise _Unusable(
                    f"the MCP server did not answer {method} within {self._timeout_s:g} s"
                ) from None
            if line is None:
                raise _Unusable(f"the MCP server ended before it answered {method}")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                shown = line[:_TOLD_CHARS].decode("utf-8", "replace").strip()
                raise _Unusable(f"the MCP server printed something that is not the protocol: {shown!r}")
            if message.get("id") != self._next_id:
                continue  # a notification, or a request of the server's that this client need not serve
            if isinstance(message.get("error"), dict):
                raise _Unusable(f"the MCP server refuses {method}: {message['error'].get('message')!r:.200}")
            result = message.get("result")
            return result if isinstance(result, dict) else {}


def _said(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """How the server ended and the end of its standard error."""
    code = process.poll()
    how = "" if code is None else f"; exit code {code}"
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4096))
    lines = [line for line in errors.read().decode("utf-8", "replace").split("\n") if line.strip()]
    return f"{how}; it said: {lines[-1].strip()[-_TOLD_CHARS:]}" if lines else how


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close its input, then TERM and KILL its group."""
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return

"""Outside the sandbox: the other end of :mod:`acpbench.harness.netgate`, open to one address only."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from acpbench.harness.netgate import join

CONNECT_TIMEOUT_S = 30.0


class ModelRelay:
    """Carries connections of a Unix socket to the model's host and port; use as a context manager."""

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.path, self.host, self.port = path, host, port
        self.n_connections = 0
        self.n_unreachable = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)
        self._socket.listen(64)

    def __enter__(self) -> ModelRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.n_connections += 1
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            outer = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT_S)
        except OSError:
            self.n_unreachable += 1
            client.close()
            return
        outer.settimeout(None)
        join(client, outer)

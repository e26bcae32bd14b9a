"""The scripted model's HTTP server: loopback only, bounded requests, an end of its own.

Served are ``/v1/messages`` (and ``count_tokens``), ``/v1/responses`` and ``/v1/chat/completions``, with any
path before them, and ``/v1/models``. Any key is accepted and none is looked at. Requests that offer no
tool to work with (titles, summaries) are answered in plain words and move no policy on.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

from acpbench import __version__
from acpbench.harness.scripted_model import anthropic, chat, responses
from acpbench.harness.scripted_model.player import Conversations, Turn
from acpbench.harness.scripted_model.wire import BYTES_PER_TOKEN

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 64 * 1024 * 1024
READ_TIMEOUT_S = 60.0
SIDE_ANSWER = "A task in computational pathology"
PROTOCOLS: dict[str, ModuleType] = {
    "/messages": anthropic,
    "/responses": responses,
    "/chat/completions": chat,
}


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    server_version = f"acp-bench-scripted-model/{__version__}"
    sys_version = ""
    timeout = READ_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is for what goes wrong."""

    def _send(self, status: int, kind: str, pieces: list[bytes]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(sum(map(len, pieces))))
        self.end_headers()
        if self.command != "HEAD":
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(
            status, "application/json", [json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")]
        )

    def _route(self) -> str:
        self.server.last_request_s = time.monotonic()
        return self.path.partition("?")[0].rstrip("/")

    def do_HEAD(self) -> None:
        """Whether the server is there."""
        self._route()
        self._send(200, "text/plain", [])

    def do_GET(self) -> None:
        """The one model."""
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "acp-bench"}
        if self._route().endswith("/models"):
            self._json({"object": "list", "data": [model], "models": []})
        elif self._route() == "":
            self._json({"name": "scripted model", "policy": self.server.conversations.policy})
        else:
            self._json(chat.error(404, f"no such address: {self.path[:200]}"), 404)

    def do_POST(self) -> None:
        """An answer of the model."""
        path = self._route()
        protocol = next((wire for end, wire in PROTOCOLS.items() if path.endswith(end)), None)
        counting = path.endswith("/messages/count_tokens")
        body = self._body()
        if body is None:
            return
        if counting:
            self._json({"input_tokens": max(1, body[1] // BYTES_PER_TOKEN)})
        elif protocol is None:
            self._json(chat.error(404, f"no such address: {path[:200]}"), 404)
        else:
            self._answer(protocol, *body)

    def _body(self) -> tuple[dict[str, Any], int] | None:
        """The request's JSON and its size; None when it was refused."""
        given = self.headers.get("Content-Length", "")
        if not given.isascii() or not given.isdigit():
            return self._refuse(411, "a request needs a Content-Length")
        if int(given) > MAX_REQUEST_BYTES:
            return self._refuse(413, f"a request has at most {MAX_REQUEST_BYTES} bytes")
        data = self.rfile.read(int(given))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return self._refuse(400, "a request is a JSON object")
        return value, len(data)

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True
        self._json(chat.error(status, message), status)

    def _answer(self, protocol: ModuleType, body: dict[str, Any], size: int) -> None:
        asked = protocol.request(body, max(1, size // BYTES_PER_TOKEN))
        if asked.toolkit.can_work:
            turn = self.server.conversations.player(asked.results).answer(asked.toolkit, asked.results)
        else:
            turn = Turn(f"msg_side_{next(self.server.side_calls)}", "call_side", SIDE_ANSWER)
        if turn.drop:
            self.close_connection = True
        elif turn.failure is not None:
            # 400: no harness tries such a request again.
            print(f"scripted-model: the policy stopped: {turn.failure}", file=sys.stderr, flush=True)
            self._json(protocol.error(400, f"the scripted policy stopped: {turn.failure}"), 400)
        elif asked.stream:
            self._send(200, "text/event-stream", protocol.streamed(asked, turn))
        else:
            self._json(protocol.whole(asked, turn))


class ModelServer(ThreadingHTTPServer):
    """The server on a loopback port (0: a free one).

    ``idle_s``: :meth:`serve` ends by itself when no request came for so long.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self, policy: str, *, encoder: str, seed: int = 0, port: int = 0, idle_s: float = 3600.0
    ) -> None:
        self.conversations = Conversations(policy, encoder, seed)
        self.side_calls = itertools.count(1)
        self.idle_s = idle_s
        self.last_request_s = time.monotonic()
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Address without a path: Anthropic's base URL as it is, OpenAI's with ``/v1``."""
        return f"http://{HOST}:{self.server_address[1]}"

    def service_actions(self) -> None:
        """Called between requests: the end when nobody asks any more."""
        if time.monotonic() - self.last_request_s > self.idle_s:
            # shutdown() waits for the loop that this is called from.
            threading.Thread(target=self.shutdown, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def serve(self) -> None:
        """Serve until :meth:`shutdown`, or until the idle limit."""
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.server_close()
            self.conversations.close()

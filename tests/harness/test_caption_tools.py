"""Captions come from the study's model, at the study's address, with the study's key; or not at all."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from PIL import Image

from acpbench.core.files import read_json, sha256_file
from acpbench.harness.context import RunContext, VisionEndpoint
from acpbench.harness.registry import call_tool
from tests.harness.build import Side

KEY_NAME, KEY = "ACPBENCH_TEST_VISION_KEY", "sk-canary-6f1d"
IMAGE = "outputs/round_0/regions/crop.png"
GOOD = {"model": "vlm-1", "choices": [{"message": {"content": " Glands in stroma. "}}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 9}}  # fmt: skip


class Endpoint:
    """A chat server on loopback with one answer, that keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, json.dumps(GOOD).encode(), {}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append((self.path, dict(self.headers), json.loads(data)))
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def context_of(side: Side, base_url: str | None, **more: Any) -> RunContext:
    vision = None
    if base_url is not None:
        settings = {"model": "vlm", "api_key_env": KEY_NAME, "timeout_s": 10} | more
        vision = VisionEndpoint(base_url=base_url, **settings)
    context = side.context(vision=vision)
    path = context.path(IMAGE)
    path.parent.mkdir(parents=True)
    Image.new("RGB", (32, 32), (220, 160, 190)).save(path)
    return context


def caption(context: RunContext, **changes: Any) -> dict[str, Any]:
    return call_tool(context, "caption_region", {"image": IMAGE} | changes)


def test_without_an_endpoint_the_tool_says_so(side: Side) -> None:
    answer = caption(context_of(side, None))
    assert answer["exit_status"] == "error"
    assert "no vision-language model is configured" in answer["error"]
    assert "without" in answer["error"]


def test_a_caption_is_the_models_text_with_what_was_asked_and_used(
    side: Side, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    context = context_of(side, endpoint.base_url)
    answer = caption(context, question="Are there glands?")
    assert answer["exit_status"] == "ok", answer["error"]
    result = answer["result"]
    assert (result["caption"], result["model"]) == ("Glands in stroma.", "vlm-1")
    assert (result["input_tokens"], result["output_tokens"]) == (300, 9)
    assert result["image_sha256"] == sha256_file(context.path(IMAGE))
    (path, headers, body) = endpoint.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["max_tokens"]) == ("vlm", 500)
    text, image = body["messages"][0]["content"]
    assert "Are there glands?" in text["text"]
    kind, _, data = image["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(data) == context.path(IMAGE).read_bytes()
    (output,) = answer["outputs"]
    assert output["path"] == "outputs/round_0/captions/crop.json"
    assert read_json(context.path(output["path"]))["caption"] == "Glands in stroma."


def test_the_key_is_in_no_file_of_the_run(
    side: Side, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    context = context_of(side, endpoint.base_url)
    caption(context)
    endpoint.status, endpoint.body = 401, f"bad key {KEY}".encode()
    error = caption(context)["error"]
    assert "401" in error and "bad key (key)" in error
    (side.root / "context.json").write_text(context.model_dump_json())
    for path in side.root.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("status", "headers", "body", "words"),
    [
        (429, {"Retry-After": "7"}, b"slow down", ["429", "retry after 7 s", "slow down"]),
        (500, {}, b"", ["500"]),
        (200, {}, b"<html>", ["not JSON"]),
        (200, {}, b"[]", ["another form"]),
        (200, {}, b'{"choices": []}', ["another form"]),
        (200, {}, b'{"choices": [{"message": {"content": ""}}]}', ["empty answer"]),
        (200, {}, b"x" * (1024 * 1024 + 1), ["1 MiB"]),
        (302, {"Location": "http://127.0.0.1:9/elsewhere"}, b"", ["302"]),
    ],
)
def test_an_answer_that_is_no_caption_is_one_clear_line(
    side: Side,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    headers: dict[str, str],
    body: bytes,
    words: list[str],
) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    endpoint.status, endpoint.headers, endpoint.body = status, headers, body
    answer = caption(context_of(side, endpoint.base_url))
    assert answer["exit_status"] == "error"
    for word in words:
        assert word in answer["error"]
    assert len(endpoint.asked) == 1


def test_a_missing_key_and_a_dead_address_are_errors(
    side: Side, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_NAME, raising=False)
    context = context_of(side, endpoint.base_url)
    assert KEY_NAME in caption(context)["error"]
    assert endpoint.asked == []
    gone = context.model_copy(
        update={"vision": VisionEndpoint(base_url="http://127.0.0.1:9/v1", model="m", timeout_s=5)}
    )
    assert "cannot be reached" in caption(gone)["error"]


def test_an_agent_cannot_name_another_address_or_model(side: Side, endpoint: Endpoint) -> None:
    context = context_of(side, endpoint.base_url, api_key_env=None)
    for extra in ("base_url", "model", "api_key_env"):
        assert "no such argument" in caption(context, **{extra: "x"})["error"]
    assert caption(context)["exit_status"] == "ok"
    assert "Authorization" not in endpoint.asked[0][1]


def test_what_is_no_picture_is_not_sent(side: Side, endpoint: Endpoint) -> None:
    context = context_of(side, endpoint.base_url, api_key_env=None)
    assert "neither PNG nor JPEG" in caption(context, image="data/splits.csv")["error"]
    assert endpoint.asked == []

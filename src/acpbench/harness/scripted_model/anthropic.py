"""Anthropic messages (``POST /v1/messages``), as Claude Code speaks it."""

from __future__ import annotations

from typing import Any

from acpbench.harness.scripted_model.agent import Result
from acpbench.harness.scripted_model.player import Turn
from acpbench.harness.scripted_model.toolkit import Offer, Toolkit, properties_of
from acpbench.harness.scripted_model.wire import Request, events, listed, mapping, plain, tokens


def request(body: dict[str, Any], size: int) -> Request:
    """The request in a body of ``size`` tokens."""
    results: dict[str, Result] = {}
    for message in listed(body.get("messages")):
        for block in listed(message.get("content")):
            if block.get("type") == "tool_result":
                content = plain(block.get("content"))
                results[str(block.get("tool_use_id"))] = Result(content, block.get("is_error") is True)
    offers = [
        Offer(str(tool.get("name")), properties_of(tool.get("input_schema")))
        for tool in listed(body.get("tools"))
    ]
    return Request(str(body.get("model")), body.get("stream") is True, Toolkit(offers), results, size)


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    if turn.call is not None:
        blocks.append(
            {"type": "tool_use", "id": turn.call_id, "name": turn.call.name, "input": turn.call.arguments}
        )
    return blocks


def _written(turn: Turn) -> int:
    return tokens(turn.text + (turn.call.body if turn.call else ""))


def _message(asked: Request, turn: Turn) -> dict[str, Any]:
    usage = {
        "input_tokens": asked.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    return {
        "id": turn.message_id,
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": _blocks(turn),
        "stop_reason": "end_turn" if turn.call is None else "tool_use",
        "stop_sequence": None,
        "usage": usage | {"output_tokens": _written(turn)},
    }


def whole(asked: Request, turn: Turn) -> dict[str, Any]:
    """An answer in one piece."""
    return _message(asked, turn)


def streamed(asked: Request, turn: Turn) -> list[bytes]:
    """An answer as server-sent events."""
    message = _message(asked, turn)
    reason, usage = message["stop_reason"], message["usage"]
    start = message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    rows: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            assert turn.call is not None
            empty, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": turn.call.body}
        rows.append({"type": "content_block_start", "index": index, "content_block": empty})
        rows.append({"type": "content_block_delta", "index": index, "delta": delta})
        rows.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": reason, "stop_sequence": None}
    rows.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}})
    rows.append({"type": "message_stop"})
    return events(rows, named=True)


def error(status: int, message: str) -> dict[str, Any]:
    """The body of a refusal."""
    kind = "invalid_request_error" if status == 400 else "not_found_error" if status == 404 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": message}}


def is_empty(body: dict[str, Any]) -> bool:
    """Whether a body holds no conversation."""
    return not listed(mapping(body).get("messages"))

"""OpenAI chat completions (``POST /v1/chat/completions``), as OpenCode speaks it."""

from __future__ import annotations

from typing import Any

from acpbench.harness.scripted_model.agent import Result
from acpbench.harness.scripted_model.player import Turn
from acpbench.harness.scripted_model.toolkit import Offer, Toolkit, properties_of
from acpbench.harness.scripted_model.wire import Request, events, listed, mapping, plain, tokens


def request(body: dict[str, Any], size: int) -> Request:
    """The request in a body of ``size`` tokens. Chat has no mark of a failed tool: its text alone tells."""
    results = {
        str(message.get("tool_call_id")): Result(plain(message.get("content")), False)
        for message in listed(body.get("messages"))
        if message.get("role") == "tool"
    }
    offers = []
    for tool in listed(body.get("tools")):
        function = mapping(tool.get("function"))
        offers.append(Offer(str(function.get("name")), properties_of(function.get("parameters"))))
    return Request(str(body.get("model")), body.get("stream") is True, Toolkit(offers), results, size)


def _call(turn: Turn) -> list[dict[str, Any]]:
    if turn.call is None:
        return []
    function = {"name": turn.call.name, "arguments": turn.call.body}
    return [{"id": turn.call_id, "type": "function", "function": function}]


def _usage(asked: Request, turn: Turn) -> dict[str, Any]:
    written = tokens(turn.text + (turn.call.body if turn.call else ""))
    return {
        "prompt_tokens": asked.input_tokens,
        "completion_tokens": written,
        "total_tokens": asked.input_tokens + written,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _common(asked: Request, turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": turn.message_id, "object": kind, "created": 0, "model": asked.model}


def _reason(turn: Turn) -> str:
    return "stop" if turn.call is None else "tool_calls"


def whole(asked: Request, turn: Turn) -> dict[str, Any]:
    """An answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.call is not None:
        message["tool_calls"] = _call(turn)
    choice = {"index": 0, "message": message, "finish_reason": _reason(turn)}
    return _common(asked, turn, "chat.completion") | {"choices": [choice], "usage": _usage(asked, turn)}


def streamed(asked: Request, turn: Turn) -> list[bytes]:
    """An answer as server-sent events."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": turn.text}]
    deltas += [{"tool_calls": [{"index": 0, **call}]} for call in _call(turn)]
    common = _common(asked, turn, "chat.completion.chunk")
    rows = [common | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": _reason(turn)}
    rows.append(common | {"choices": [end], "usage": _usage(asked, turn)})
    return [*events(rows, named=False), b"data: [DONE]\n\n"]


def error(status: int, message: str) -> dict[str, Any]:
    """The body of a refusal."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}

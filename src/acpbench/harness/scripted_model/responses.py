"""OpenAI responses (``POST /v1/responses``), as Codex speaks it."""

from __future__ import annotations

from typing import Any

from acpbench.harness.scripted_model.agent import Result
from acpbench.harness.scripted_model.chat import error
from acpbench.harness.scripted_model.player import Turn
from acpbench.harness.scripted_model.toolkit import Offer, Toolkit, properties_of
from acpbench.harness.scripted_model.wire import Request, events, listed, plain, tokens

__all__ = ["error", "request", "streamed", "whole"]


def _offers(tools: Any, namespace: str | None = None) -> list[Offer]:
    """Functions and free-form tools; the tools of an MCP server stand in a ``namespace`` of its name."""
    found: list[Offer] = []
    for tool in listed(tools):
        kind, name = tool.get("type"), str(tool.get("name"))
        if kind == "namespace":
            found += _offers(tool.get("tools"), name)
        elif kind == "function":
            found.append(Offer(name, properties_of(tool.get("parameters")), namespace))
        elif kind == "custom":
            found.append(Offer(name, {}, namespace, "custom"))
    return found


def request(body: dict[str, Any], size: int) -> Request:
    """The request in a body of ``size`` tokens. Codex marks no failed tool: its text alone tells."""
    results = {
        str(item.get("call_id")): Result(plain(item.get("output")), False)
        for item in listed(body.get("input"))
        if str(item.get("type")).endswith("call_output")
    }
    toolkit = Toolkit(_offers(body.get("tools")))
    return Request(str(body.get("model")), body.get("stream") is True, toolkit, results, size)


def _items(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append(
            {
                "type": "message",
                "id": turn.message_id,
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    call = turn.call
    if call is not None and call.kind == "custom":
        items.append(
            {
                "type": "custom_tool_call",
                "id": f"ct_{turn.call_id}",
                "call_id": turn.call_id,
                "name": call.name,
                "input": call.text,
                "status": "completed",
            }
        )
    elif call is not None:
        item = {
            "type": "function_call",
            "id": f"fc_{turn.call_id}",
            "call_id": turn.call_id,
            "name": call.name,
            "arguments": call.body,
            "status": "completed",
        }
        items.append(item if call.namespace is None else item | {"namespace": call.namespace})
    return items


def whole(asked: Request, turn: Turn) -> dict[str, Any]:
    """An answer in one piece."""
    written = tokens(turn.text + (turn.call.body if turn.call else ""))
    usage = {
        "input_tokens": asked.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked.input_tokens + written,
    }
    return {
        "id": turn.message_id.replace("msg_", "resp_"),
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": asked.model,
        "output": _items(turn),
        "usage": usage,
    }


def streamed(asked: Request, turn: Turn) -> list[bytes]:
    """An answer as server-sent events."""
    response = whole(asked, turn)
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    rows: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(response["output"]):
        empty = {
            "message": {"content": []},
            "function_call": {"arguments": ""},
            "custom_tool_call": {"input": ""},
        }
        added = item | {"status": "in_progress"} | empty[item["type"]]
        rows.append({"type": "response.output_item.added", "output_index": index, "item": added})
        if item["type"] == "message":
            delta = {"item_id": item["id"], "output_index": index, "content_index": 0, "delta": turn.text}
            rows.append({"type": "response.output_text.delta", **delta})
        rows.append({"type": "response.output_item.done", "output_index": index, "item": item})
    rows.append({"type": "response.completed", "response": response})
    return events([row | {"sequence_number": number} for number, row in enumerate(rows)], named=True)

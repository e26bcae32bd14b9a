"""Rows of the tool timeline, from the registry's own log (the witness), placed on the run's clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from acpbench.report.snippets import call_anchor
from acpbench.report.untrusted import mapping, short
from acpbench.trajectory.events import Event

MAX_ROWS = 300


def seconds(moment: Any) -> float | None:
    """Unix seconds of an ISO 8601 time (UTC when it names no zone), ``None`` for anything else."""
    if not isinstance(moment, str) or len(moment) > 40:
        return None
    try:
        parsed = datetime.fromisoformat(moment)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _arguments(value: Any) -> str:
    try:
        return short(json.dumps(value, ensure_ascii=False, sort_keys=True), 240)
    except (RecursionError, ValueError, TypeError):
        return "(not shown)"


def caches(log: list[dict[str, Any]]) -> list[str | None]:
    """``hit`` or ``miss`` of each call of ``tools.jsonl`` in start order, ``None`` where nothing is said.

    Args:
        log: parsed lines of ``tools.jsonl``; the events of the trajectory do not carry this field.
    """
    ends = {str(row.get("call_id")): row for row in log if row.get("event") == "end"}
    found = (
        mapping(ends.get(str(row.get("call_id")))).get("cache") for row in log if row.get("event") == "start"
    )
    return [short(value, 10) if value else None for value in found]


def rows(
    calls: list[Event], t_start: Any = None, t_end: Any = None, cache: list[str | None] | None = None
) -> dict[str, Any]:
    """Place tool calls on a 0–100 scale.

    Args:
        calls: the registry's calls (:func:`acpbench.trajectory.events.tool_calls`).
        t_start: the run's start, ISO; the first call's time is used when it is missing.
        t_end: the run's end, ISO.
        cache: :func:`caches`, one entry a call.

    Returns:
        ``calls``: ``{anchor, tool, step, round, status, args, error, cache, outputs, left, width, offset_s,
        duration_s}``; ``left`` is ``None`` when a call has no readable time; a start without an end has
        status ``no end``. ``span_s`` and ``hidden`` (calls beyond the ``MAX_ROWS`` shown).
    """
    known = [moment for call in calls for moment in (call.t, call.t_end) if moment is not None]
    first, last = seconds(t_start), seconds(t_end)
    low = min([*known, *([first] if first is not None else [])], default=0.0)
    high = max([*known, *([last] if last is not None else [])], default=low)
    span = max(high - low, 1e-9)
    shown = []
    for index, call in enumerate(calls[:MAX_ROWS]):
        begin, finish = call.t, call.t_end
        stop = finish if finish is not None else begin
        shown.append(
            {
                "anchor": call_anchor(call.ref),
                "tool": short(call.name, 60),
                "step": short(call.step_id or "", 30),
                "round": call.round_id,
                "status": call.exit_status if call.exit_status in ("ok", "error", "cancelled") else "no end",
                "args": _arguments(call.args),
                "error": short(call.error, 300) if call.error else None,
                "cache": cache[index] if cache and index < len(cache) else None,
                "outputs": [short(item.get("path"), 100) for item in call.outputs[:6]],
                "left": None if begin is None else round(100 * (begin - low) / span, 2),
                "width": None
                if begin is None or stop is None
                else round(max(100 * (stop - begin) / span, 0.6), 2),
                "offset_s": None if begin is None else begin - low,
                "duration_s": None if begin is None or finish is None else finish - begin,
            }
        )
    return {"calls": shown, "span_s": high - low, "hidden": max(len(calls) - MAX_ROWS, 0)}


def summary_line(call: dict[str, Any]) -> str:
    """One line about a row of :func:`rows`: tool, step, round, how it ended and what it wrote."""
    words = [call["tool"]]
    if call["step"]:
        words.append(f"step {call['step']}")
    if call["round"] is not None:
        words.append(f"round {call['round']}")
    wrote = f"; wrote {', '.join(call['outputs'][:3])}" if call["outputs"] else ""
    more = " and more" if len(call["outputs"]) > 3 else ""
    return f"{', '.join(words)}: {call['status']}{wrote}{more}"

"""Rows of the tool timeline, from the registry's own log (the witness), placed on the run's clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from acpbench.report.untrusted import listing, mapping, short

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


def rows(events: list[dict[str, Any]], t_start: Any = None, t_end: Any = None) -> dict[str, Any]:
    """Pair start and end events and place them on a 0–100 scale.

    Args:
        events: parsed lines of ``tools.jsonl``.
        t_start: the run's start, ISO; the first event's time is used when it is missing.
        t_end: the run's end, ISO.

    Returns:
        ``calls``: ``{tool, step, round, status, args, error, outputs, left, width, offset_s, duration_s}``;
        ``left`` is ``None`` when a call has no readable time; a start without an end has status ``no end``.
        ``span_s`` and ``hidden`` (calls beyond the ``MAX_ROWS`` shown).
    """
    calls: dict[str, dict[str, Any]] = {}
    for index, event in enumerate(events):
        kind, call_id = event.get("event"), event.get("call_id")
        key = call_id if isinstance(call_id, str) else f"\0{index}"
        if kind == "start" and key not in calls:
            calls[key] = {"start": event, "end": None}
        elif kind == "end":
            calls.setdefault(key, {"start": event, "end": None})["end"] = event
    times = [
        (seconds(call["start"].get("t")), seconds(mapping(call["end"]).get("t"))) for call in calls.values()
    ]
    known = [moment for pair in times for moment in pair if moment is not None]
    first, last = seconds(t_start), seconds(t_end)
    low = min([*known, *([first] if first is not None else [])], default=0.0)
    high = max([*known, *([last] if last is not None else [])], default=low)
    span = max(high - low, 1e-9)
    shown = []
    for call, (begin, finish) in list(zip(calls.values(), times))[:MAX_ROWS]:
        start, end = call["start"], mapping(call["end"])
        status = end.get("exit_status")
        stop = finish if finish is not None else begin
        shown.append(
            {
                "tool": short(start.get("tool") or "(no name)", 60),
                "step": short(start.get("step_id") or "", 30),
                "round": start.get("round_id") if isinstance(start.get("round_id"), int) else None,
                "status": (status if status in ("ok", "error", "cancelled") else "no end"),
                "args": _arguments(start.get("args")),
                "error": short(end["error"], 300) if end.get("error") else None,
                "cache": short(end["cache"], 10) if end.get("cache") else None,
                "outputs": [
                    short(mapping(item).get("path"), 100) for item in listing(end.get("outputs"))[:6]
                ],
                "left": None if begin is None else round(100 * (begin - low) / span, 2),
                "width": None
                if begin is None or stop is None
                else round(max(100 * (stop - begin) / span, 0.6), 2),
                "offset_s": None if begin is None else begin - low,
                "duration_s": None if begin is None or finish is None else finish - begin,
            }
        )
    return {"calls": shown, "span_s": high - low, "hidden": max(len(calls) - MAX_ROWS, 0)}

"""Values of any type in any place of a record: an import ends with a valid record or a refusal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory.events import load_events
from acpbench.trajectory.importer import import_file
from tests.trajectory.atif_rules import broken_rules
from tests.trajectory.test_atif import CLAUDE, CODEX, document
from tests.trajectory.test_opencode import ERROR, START, STOP, TEXT, USER, export, reply, tool

ROLLOUT = [
    {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}
    for kind, payload in (
        ("session_meta", {"id": "t", "cli_version": "1", "source": {"subagent": {"thread_spawn": {}}}}),
        (
            "response_item",
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        ),
        ("event_msg", {"type": "user_message", "message": "x"}),
        ("response_item", {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"}),
        ("response_item", {"type": "function_call_output", "call_id": "c", "output": '{"output": "x"}'}),
        ("event_msg", {"type": "token_count", "info": {"total_token_usage": {"input_tokens": 1}}}),
        ("event_msg", {"type": "turn_aborted", "reason": "x"}),
    )
]
SESSION = [{**row, "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z"} for row in CLAUDE]
STEPS = document(
    {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "x"}]},
    {
        "step_id": 2,
        "source": "agent",
        "message": "x",
        "reasoning_content": "y",
        "metrics": {"prompt_tokens": 1},
        "tool_calls": [{"tool_call_id": "a", "function_name": "f", "arguments": {}, "extra": {"t": "x"}}],
        "observation": {
            "results": [{"source_call_id": "a", "content": "x", "extra": {"structured": {"a": 1}}}]
        },
    },
    {
        "step_id": 3,
        "source": "system",
        "message": "x",
        "extra": {"acpbench": {"event": {"kind": "terminal", "outcome": "success", "reason": "x"}}},
    },
    final_metrics={"total_prompt_tokens": 1},
    subagent_trajectories=[document({"source": "user", "message": "x"})],
)
RECORDS: dict[str, Any] = {
    "claude_stream": CLAUDE,
    "claude_session": SESSION,
    "codex_exec": CODEX,
    "codex_rollout": ROLLOUT,
    "opencode_run": [START, tool(output="x"), TEXT, STOP, ERROR],
    "opencode_export": export(USER, reply()),
    "atif": STEPS,
}
ODD = [
    None,
    True,
    -1,
    10**30,
    1e999,
    float("nan"),
    "",
    "\udc80",
    [],
    {},
    [[1]],
    {"type": "x"},
    "a" * 2000,
    3.7,
]


def mutated(value: Any, source: random.Random) -> Any:
    """A copy with odd values in some places and some fields left out or renamed."""
    if source.random() < 0.05:
        return source.choice(ODD)
    if isinstance(value, dict):
        return {
            key if source.random() > 0.02 else "renamed": mutated(item, source)
            for key, item in value.items()
            if source.random() > 0.03
        }
    return [mutated(item, source) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_odd_values_anywhere_end_in_a_record_or_a_refusal(name: str, tmp_path: Path) -> None:
    source = random.Random(name)
    imported = 0
    for number in range(60):
        record = mutated(RECORDS[name], source)
        rows = record if isinstance(record, list) else [record]
        path = tmp_path / f"{number}.json"
        path.write_bytes(b"\n".join(json.dumps(row).encode() for row in rows))
        try:
            import_file(path, tmp_path / f"{number}.run")
        except InputError:
            continue
        imported += 1
        written = json.loads((tmp_path / f"{number}.run" / "trajectory.json").read_text())
        assert broken_rules(written) == []
        load_events(tmp_path / f"{number}.run")
    assert imported > 20

"""Every real record of the shared data: imported with the counts it has, or refused with its reason.

The expected numbers are counted here a second time, by :func:`recount`, straight from the JSON of each line.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory.events import load_events
from acpbench.trajectory.importer import import_file
from acpbench.trajectory.record import load_manifest, load_run
from tests.trajectory.atif_rules import broken_rules


class Expected(NamedTuple):
    """What becomes of one file. ``refused``: the reason; else format, events, unknown, malformed, status."""

    source_format: str = ""
    kept: int = 0
    unknown: int = 0
    malformed: int = 0
    status: str = ""
    refused: str = ""


def _atif(kept: int, unknown: int = 0) -> Expected:
    return Expected("atif", kept, unknown, 0, "incomplete_stream")


SUMMARY = "harbor_terminus2_hello-world-context-summarization.trajectory"
EXPECTED = {
    "atif/harbor_openhands_hello-world.trajectory.json": _atif(12),
    f"atif/{SUMMARY}.json": _atif(33),
    f"atif/{SUMMARY}.summarization-1-answers.json": _atif(13),
    f"atif/{SUMMARY}.summarization-1-questions.json": _atif(4),
    f"atif/{SUMMARY}.summarization-1-summary.json": _atif(11),
    "atif/harbor_terminus2_hello-world-invalid-json.trajectory.json": _atif(21),
    "atif/harbor_terminus2_hello-world-timeout.trajectory.json": _atif(14),
    # Its first five steps have the source "<redacted>": nobody can say who spoke.
    "atif/polylogue_nemo_relay_atif_v1.7_real_redacted.json": _atif(9, 5),
    "claude_code_session/agentcmd_full-session-three.jsonl":
        Expected("claude_code_session", 79, 0, 0, "incomplete_stream"),
    "claude_code_session/agentcmd_full-session-two.jsonl":
        Expected("claude_code_session", 54, 0, 0, "incomplete_stream"),
    "claude_code_session/ccviewer_1af7fc5e-8455-4414-9ccd-011d40f70b2a.jsonl":
        Expected("claude_code_session", 48, 0, 0, "completed"),
    "claude_code_session/ccviewer_5c0375b4-57a5-4f26-b12d-d022ee4e51b7.jsonl":
        Expected("claude_code_session", 87, 0, 0, "incomplete_stream"),
    "claude_code_session/daaain_edge_cases.jsonl":
        Expected("claude_code_session", 19, 4, 3, "incomplete_stream"),
    "claude_code_session/daaain_representative_messages.jsonl":
        Expected("claude_code_session", 18, 0, 0, "incomplete_stream"),
    "claude_code_session/daaain_todowrite_examples.jsonl":
        Expected("claude_code_session", 22, 0, 0, "incomplete_stream"),
    "claude_code_session/simonw_sample_session.jsonl":
        Expected("claude_code_session", 10, 0, 0, "incomplete_stream"),
    "claude_code_stream/captured_cli_2.1.197.jsonl": Expected("claude_code_stream", 8, 0, 0, "completed"),
    "claude_code_stream/captured_cli_mcp.jsonl": Expected("claude_code_stream", 8, 0, 0, "completed"),
    "claude_code_stream/gleam_assistant_message.json":
        Expected("claude_code_stream", 2, 0, 0, "incomplete_stream"),
    "claude_code_stream/gleam_assistant_unknown_block.json":
        Expected("claude_code_stream", 2, 1, 0, "incomplete_stream"),
    "claude_code_stream/gleam_result_error.json": Expected("claude_code_stream", 2, 0, 0, "agent_error"),
    "claude_code_stream/gleam_result_success.json": Expected("claude_code_stream", 2, 0, 0, "completed"),
    "claude_code_stream/gleam_system_message.json":
        Expected("claude_code_stream", 1, 0, 0, "incomplete_stream"),
    "claude_code_stream/gleam_unknown_message_type.json":
        Expected(refused="is of no known record format: one JSON object of type 'future_message_type'"),
    "claude_code_stream/gleam_user_message.json":
        Expected("claude_code_stream", 1, 0, 0, "incomplete_stream"),
    "claude_code_stream/ortus_claude-stream-events.jsonl":
        Expected("claude_code_stream", 11, 0, 0, "completed"),
    # Two sessions in one file; the second fails.
    "claude_code_stream/takopi_claude_stream_json_session.jsonl":
        Expected("claude_code_stream", 16, 0, 0, "agent_error"),
    "codex_exec/captured_cli_0.171.0.jsonl": Expected("codex_exec", 7, 0, 0, "completed"),
    "codex_exec/captured_cli_mcp.jsonl": Expected("codex_exec", 7, 0, 0, "completed"),
    "codex_exec/ortus_codex-exec-events-failed.jsonl": Expected("codex_exec", 9, 0, 0, "agent_error"),
    "codex_exec/ortus_codex-exec-events.jsonl": Expected("codex_exec", 12, 0, 0, "completed"),
    # A rollout, whatever its folder says; "token_count" as a response item has no name.
    "codex_exec/polylogue_interleaved_stream.jsonl":
        Expected("codex_rollout", 10, 1, 0, "incomplete_stream"),
    "codex_exec/takopi_codex_exec_json_all_formats.jsonl": Expected("codex_exec", 24, 0, 0, "agent_error"),
    "codex_rollout/agentcmd_rollout-2025-09-24T20-12-23-01997ea4-a70d-7da3-8c20-c736db82a7c5.jsonl":
        Expected("codex_rollout", 73, 0, 0, "completed"),
    "codex_rollout/agentcmd_rollout-2025-09-25T15-12-14-019982b8-3422-79e0-8b3b-05abaf4f3c3e.jsonl":
        Expected("codex_rollout", 140, 0, 0, "completed"),
    "inspect_eval/2025-02-11T15-18-04-05-00_popularity_mj7khqpMM4GBCfVQozKgzB.eval":
        Expected(refused="holds 10 samples and a record is one trajectory; choose one with --sample: "
                         "10:1, 1:1, 2:1, 3:1, 4:1, 5:1, 6:1, 7:1, 8:1, 9:1"),
    "inspect_eval/log_read_sample.eval": Expected("inspect_eval", 6, 0, 0, "completed"),
    "opencode_run/captured_cli_1.18.33.jsonl": Expected("opencode_run", 6, 0, 0, "completed"),
    "opencode_run/captured_cli_mcp.jsonl": Expected("opencode_run", 6, 0, 0, "completed"),
    "opencode_run/takopi_opencode_run_json.jsonl": Expected("opencode_run", 6, 0, 0, "agent_error"),
    "opencode_run/takopi_opencode_stream_error.jsonl": Expected("opencode_run", 2, 0, 0, "agent_error"),
    "opencode_run/takopi_opencode_stream_success.jsonl": Expected("opencode_run", 6, 0, 0, "completed"),
    "opencode_run/takopi_opencode_stream_success_no_reason.jsonl":
        Expected("opencode_run", 3, 0, 0, "incomplete_stream"),
}  # fmt: skip


# -- a second count, straight from the JSON --


def _rows(path: Path) -> list[Any]:
    """JSON values of the lines; a line that is no JSON is its text; a pretty-printed file is one value."""
    data = path.read_bytes()
    try:
        return [json.loads(data)]
    except ValueError:
        pass
    rows = []
    for line in data.split(b"\n"):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError:
                rows.append(line.decode())
    return rows


CLAUDE_BLOCKS = ("text", "tool_use", "tool_result", "thinking", "image")


def _claude(rows: list[Any], session: bool) -> tuple[int, int]:
    kept, unknown = (1, 0) if session else (0, 0)
    for row in rows:
        if isinstance(row, str) and row.startswith("#"):
            kept += 1  # printed text
        if not isinstance(row, dict):
            continue
        kind = row.get("type")
        if kind in ("assistant", "user"):
            message = row["message"]
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, str):
                kept += 1
            elif not content:
                unknown += 1
            else:
                for block in content:
                    named = isinstance(block, dict) and block["type"] in CLAUDE_BLOCKS
                    kept, unknown = kept + named, unknown + (not named)
                    kept += isinstance(block, dict) and block.get("name") == "TodoWrite"
            kept += isinstance(message, dict) and "usage" in message
        elif kind == "result":
            kept += 2 + len(row.get("permission_denials", []))
        elif kind in ("system", "summary"):
            kept += 1
        elif kind != "file-history-snapshot":
            unknown += 1
    return kept, unknown


def _codex_exec(rows: list[dict]) -> int:
    kept = 0
    started = set()
    for row in rows:
        item = row.get("item", {})
        calls = item.get("type") in ("command_execution", "mcp_tool_call", "web_search")
        if row["type"] == "item.started" and calls:
            started.add(item["id"])
            kept += 1
        elif row["type"] == "item.completed" and calls:
            kept += 1 + (item["id"] not in started)
        elif item.get("type") == "file_change":
            kept += len(item["changes"])
        elif item or row["type"] in ("thread.started", "error", "turn.failed"):
            kept += 1
        elif row["type"] == "turn.completed":
            kept += 2
    return kept


def _codex_rollout(rows: list[dict]) -> tuple[int, int]:
    """Each response item and token count once; displayed messages repeat items but where nothing does."""
    kept = unknown = 0
    said = []
    for row in rows:
        payload = row["payload"]
        if row["type"] == "response_item":
            unknown += payload["type"] == "token_count"
            kept += payload["type"] != "token_count"
            said += [part.get("text") for part in payload.get("content") or payload.get("summary") or []]
        elif row["type"] in ("session_meta", "compacted") or payload.get("type") == "token_count":
            kept += 1
    for row in rows:
        if row["type"] == "event_msg" and row["payload"]["type"] != "token_count":
            kept += (row["payload"].get("text") or row["payload"].get("message")) not in said
    return kept, unknown


def _opencode(rows: list[dict]) -> int:
    counts = {"tool_use": 2, "text": 1, "step_finish": 1, "error": 1, "step_start": 0}
    return 1 + sum(counts[row["type"]] for row in rows)


def _atif_count(document: dict) -> tuple[int, int]:
    kept, unknown = 1, 0
    for step in document["steps"]:
        if step["source"] not in ("system", "user", "agent"):
            unknown += 1
            continue
        agent = step["source"] == "agent"
        kept += bool(step["message"]) or not step.get("tool_calls")
        kept += bool(step.get("reasoning_content")) + len(step.get("tool_calls") or [])
        kept += len((step.get("observation") or {}).get("results", []))
        kept += agent and "metrics" in step
    return kept, unknown


def recount(path: Path, expected: Expected) -> tuple[int, int]:
    """Named and unnamed events of a file, counted without the importer."""
    if expected.source_format == "inspect_eval":
        with zipfile.ZipFile(path) as archive:
            sample = json.loads(archive.read("samples/1_epoch_1.json"))
        kinds = [event["event"] for event in sample["events"]]
        model = next(event for event in sample["events"] if event["event"] == "model")
        # The session, the input's messages, answer and usage of each model call, the score.
        return 1 + len(model["input"]) + 2 * kinds.count("model") + kinds.count("score"), 0
    rows = _rows(path)
    if expected.source_format.startswith("claude"):
        return _claude(rows, expected.source_format == "claude_code_session")
    if expected.source_format == "codex_exec":
        return _codex_exec(rows), 0
    if expected.source_format == "codex_rollout":
        return _codex_rollout(rows)
    return (_opencode(rows), 0) if expected.source_format == "opencode_run" else _atif_count(rows[0])


# -- the tests --


@pytest.fixture(scope="module")
def records(shared_data: Path) -> Path:
    folder = shared_data / "trajectories"
    if not folder.is_dir():
        pytest.skip(f"no real records in {folder}")
    return folder


def test_the_table_names_every_file(records: Path) -> None:
    found = {path.relative_to(records).as_posix() for path in records.rglob("*") if path.is_file()}
    assert found == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_record_imports_or_is_refused(name: str, records: Path, tmp_path: Path) -> None:
    path, expected, output = records / name, EXPECTED[name], tmp_path / "run"
    if expected.refused:
        with pytest.raises(InputError) as caught:
            import_file(path, output)
        assert str(caught.value) == f"{path}: {expected.refused}"
        assert list(tmp_path.iterdir()) == []
        return
    record = import_file(path, output)
    source = record.imported
    assert source is not None
    got = (
        source.source_format,
        source.kept,
        sum(source.unknown.values()),
        source.malformed,
        record.run_status,
    )
    assert got == expected[:5]
    assert (source.kept, sum(source.unknown.values())) == recount(path, expected)
    assert load_run(output) == record
    assert load_manifest(output) == {}
    kept = [*output.glob("source.*"), output / "stream.jsonl"]
    assert kept[0].read_bytes() == path.read_bytes()
    assert len(kept) == 1 or kept[1].read_bytes() == b""
    assert (output / "tools.jsonl").read_bytes() == b""
    assert broken_rules(json.loads((output / "trajectory.json").read_text())) == []
    assert all(event.source == "stream" for event in load_events(output))


@pytest.mark.parametrize("sample", ["1", "9:1"])
def test_one_sample_of_an_inspect_log(sample: str, records: Path, tmp_path: Path) -> None:
    path = next(path for path in (records / "inspect_eval").iterdir() if "popularity" in path.name)
    record = import_file(path, tmp_path / "run", sample=sample)
    with zipfile.ZipFile(path) as archive:
        usage = json.loads(archive.read(f"samples/{sample[0]}_epoch_1.json"))["model_usage"]
    assert record.tokens == {
        "input_tokens": usage["openai/gpt-4o-mini"]["input_tokens"],
        "output_tokens": usage["openai/gpt-4o-mini"]["output_tokens"],
    }
    assert (record.harness.name, record.model) == ("inspect_ai", {"model": "openai/gpt-4o-mini"})
    assert record.run_status == "completed"


TOTALS = {
    # result.usage 20 and 10; the messages alone would give 10 and 1, their ids being the same
    "claude_code_stream/captured_cli_mcp.jsonl":
        ({"input_tokens": 20, "cached_tokens": 0, "output_tokens": 10}, 0.00021),
    # 18 fresh + 25067 written + 17254 read
    "claude_code_stream/gleam_result_success.json":
        ({"input_tokens": 42339, "cached_tokens": 17254, "output_tokens": 424}, 0.24722425),
    # two sessions: 130 + 40 and 76 + 12
    "claude_code_stream/takopi_claude_stream_json_session.jsonl":
        ({"input_tokens": 170, "cached_tokens": 0, "output_tokens": 88}, 0.013345),
    "codex_exec/ortus_codex-exec-events.jsonl":
        ({"input_tokens": 5800, "cached_tokens": 1280, "output_tokens": 230, "reasoning_tokens": 80}, None),
    # the last running total, not the sum of all
    "codex_rollout/agentcmd_rollout-2025-09-24T20-12-23-01997ea4-a70d-7da3-8c20-c736db82a7c5.jsonl":
        ({"input_tokens": 149449, "cached_tokens": 120192, "output_tokens": 4808, "reasoning_tokens": 2688},
         None),
    # 21772 + 671 fresh + 21415 read; 110 + 8
    "opencode_run/takopi_opencode_stream_success.jsonl":
        ({"input_tokens": 43858, "cached_tokens": 21415, "output_tokens": 118, "reasoning_tokens": 0}, 0.001),
    "opencode_run/takopi_opencode_stream_error.jsonl": (None, None),
    "claude_code_session/simonw_sample_session.jsonl": (None, None),
    "atif/harbor_openhands_hello-world.trajectory.json":
        ({"input_tokens": 220, "output_tokens": 80}, 0.00135),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_tokens_and_cost_by_the_familys_own_rule(name: str, records: Path, tmp_path: Path) -> None:
    record = import_file(records / name, tmp_path / "run")
    tokens, cost = TOTALS[name]
    assert record.tokens == tokens
    assert record.cost_usd == (None if cost is None else pytest.approx(cost))
    assert (record.cost_source is None) == (cost is None)


@pytest.mark.parametrize(
    "name",
    ["agentcmd_full-session-three.jsonl", "ccviewer_5c0375b4-57a5-4f26-b12d-d022ee4e51b7.jsonl"],
)
def test_a_session_counts_each_request_once(name: str, records: Path, tmp_path: Path) -> None:
    path = records / "claude_code_session" / name
    last: dict[tuple, dict] = {}
    naive = 0
    for line in path.read_bytes().split(b"\n"):
        row = json.loads(line) if line.strip() else {}
        if row.get("type") == "assistant":
            last[row["message"]["id"], row.get("requestId")] = row["message"]["usage"]
            naive += row["message"]["usage"]["output_tokens"]
    record = import_file(path, tmp_path / "run")
    assert record.tokens is not None
    assert record.tokens["output_tokens"] == sum(usage["output_tokens"] for usage in last.values()) < naive
    assert record.tokens["input_tokens"] == sum(
        usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        for usage in last.values()
    )


def test_the_registrys_tool_has_one_name_in_all_three_harnesses(records: Path, tmp_path: Path) -> None:
    for family in ("claude_code_stream", "codex_exec", "opencode_run"):
        import_file(records / family / "captured_cli_mcp.jsonl", tmp_path / family)
        calls = [event for event in load_events(tmp_path / family) if event.kind == "tool"]
        assert [(call.name, call.exit_status, call.args) for call in calls] == [
            ("slide_inspect", "ok", {"path": "/workspace/slide.svs"})
        ]


def test_the_shell_call_is_one_command_in_all_three_harnesses(records: Path, tmp_path: Path) -> None:
    for name in ("claude_code_stream/captured_cli_2.1.197", "codex_exec/captured_cli_0.171.0",
                 "opencode_run/captured_cli_1.18.33"):  # fmt: skip
        output = tmp_path / name.replace("/", "_")
        import_file(records / f"{name}.jsonl", output)
        commands = [event for event in load_events(output) if event.kind == "command"]
        assert [(command.name, command.exit_status) for command in commands] == [
            ("echo hello > out.txt; cat out.txt", "ok")
        ]

"""The witnessed call: typed arguments, two rows a call, hashes, errors an agent can repair from."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from acpbench.core.errors import InputError
from acpbench.core.files import read_jsonl, sha256_file, write_csv
from acpbench.core.progress import track
from acpbench.harness import call_log, document_tools, registry
from acpbench.harness.registry import TOOLS, answer_of, call_tool, registry_digest, registry_document
from acpbench.harness.tool_base import ToolArgs, ToolResult
from acpbench.trajectory.events import tool_calls
from tests.harness.build import Side

VALID: dict[str, dict[str, Any]] = {
    "inspect_slides": {},
    "report_quality": {},
    "read_region": {"slide_id": "S00", "x_level0": 0, "y_level0": 0, "spacing_um": 0.5},
    "segment_tissue": {"slide_id": "S00"},
    "segment_nuclei": {"slide_id": "S00"},
    "tile_slides": {"spacing_um": 0.5, "tile_size_px": 224},
    "extract_features": {"spacing_um": 0.5, "tile_size_px": 224, "encoder": "color_stats"},
    "train_mil": {"features_index": "outputs/round_0/features_index.csv"},
    "predict_mil": {"model": "m.pt", "features_index": "f.csv", "output": "outputs/round_0/p.csv"},
    "evaluate_predictions": {"predictions": "p.csv", "output": "outputs/round_0/metrics.json"},
    "assess_calibration": {"predictions": "p.csv", "output": "outputs/round_0/calibration.json"},
    "compare_predictions": {
        "predictions_a": "a.csv", "predictions_b": "b.csv", "output": "outputs/round_0/comparison.json",
    },
    "caption_region": {"image": "i.png"},
    "evaluate_test": {"predictions": "p.csv"},
    "render_attention": {"model": "m.pt", "features_index": "f.csv", "slide_id": "S00"},
    "read_table": {"path": "data/splits.csv"},
    "validate_schema": {"path": "reports/report.json", "schema_name": "report"},
    "validate_spec": {"path": "plan/workflow_spec.json"},
    "validate_report": {"path": "reports/report.json"},
}  # fmt: skip


def test_every_tool_has_a_case_here() -> None:
    assert set(VALID) == set(TOOLS)


@pytest.mark.parametrize("tool_id", list(TOOLS))
def test_arguments_are_typed_and_closed(tool_id: str) -> None:
    model = TOOLS[tool_id].args_model()
    model.model_validate(VALID[tool_id])
    with pytest.raises(ValidationError, match="extra_forbidden"):
        model.model_validate(VALID[tool_id] | {"surprise": 1})
    for name, field in model.model_fields.items():
        if field.is_required():
            with pytest.raises(ValidationError, match=name):
                model.model_validate({key: value for key, value in VALID[tool_id].items() if key != name})
    assert callable(TOOLS[tool_id].function())
    assert set(model.input_fields) <= set(model.model_fields)


@pytest.mark.parametrize(
    ("tool_id", "field", "value"),
    [
        ("inspect_slides", "output_dir", "../elsewhere"),
        ("inspect_slides", "output_dir", "reflection/round_6"),
        ("inspect_slides", "output_dir", "outputs/round_0\n"),
        ("tile_slides", "spacing_um", 0),
        ("tile_slides", "tile_size_px", 31),
        ("tile_slides", "min_tissue", 1.5),
        ("extract_features", "spacing_um", 21),
        ("train_mil", "aggregator", "transformer"),
        ("train_mil", "dropout", 1.0),
        ("train_mil", "max_epochs", 501),
        ("evaluate_predictions", "round_id", 6),
        ("evaluate_predictions", "output", "data/slide_manifest.json"),
        ("read_table", "n_rows", 51),
        ("report_quality", "max_pen_fraction", 1.2),
        ("read_region", "width_px", 2049),
        ("read_region", "x_level0", -1),
        ("read_region", "format", "tiff"),
        ("segment_nuclei", "spacing_um", 4.0),
        ("segment_nuclei", "x_level0", 3),
        ("segment_nuclei", "min_area_um2", 500.0),
        ("segment_tissue", "min_piece_mm2", 0.0),
        ("predict_mil", "output", "data/p.csv"),
        ("predict_mil", "splits", []),
        ("compare_predictions", "n_resamples", 99),
        ("caption_region", "question", "x" * 501),
        ("validate_schema", "schema_name", "anything"),
    ],
)
def test_values_out_of_range_are_refused_by_name(tool_id: str, field: str, value: object, side: Side) -> None:
    row = call_tool(side.context(), tool_id, VALID[tool_id] | {field: value})
    assert row["exit_status"] == "error"
    assert field in row["error"]
    assert tool_id in row["error"]


def test_a_call_is_two_rows_with_hashes_of_what_was_read_and_made(side: Side) -> None:
    context = side.context()
    answer = call_tool(context, "inspect_slides", {}, step_id="s1", round_id=0)
    read = call_tool(context, "read_table", {"path": "outputs/round_0/slide_manifest.csv"}, step_id="s2")
    rows = read_jsonl(context.tool_log)
    assert [(row["event"], row["seq"], row["call_id"]) for row in rows] == [
        ("start", 1, "c0001"), ("end", 2, "c0001"), ("start", 3, "c0003"), ("end", 4, "c0003")]  # fmt: skip
    assert rows[1] == answer
    assert rows[3] == read
    assert (rows[0]["step_id"], rows[0]["round_id"], rows[2]["round_id"]) == ("s1", 0, None)
    assert rows[0]["args"] == {}
    made = context.path("outputs/round_0/slide_manifest.csv")
    digest = sha256_file(made)
    assert answer["outputs"] == [
        {"path": "outputs/round_0/slide_manifest.csv", "sha256": digest, "size": made.stat().st_size}
    ]
    assert rows[2]["inputs"] == answer["outputs"]
    assert rows[0]["t"] <= rows[1]["t"] <= rows[2]["t"]
    assert answer["duration_s"] >= 0
    assert answer["exit_status"] == "ok"
    assert answer["error"] is None


def test_inspection_keeps_every_slide_and_gives_each_dropped_one_its_reason(side: Side) -> None:
    answer = call_tool(side.context(), "inspect_slides", {})
    assert answer["result"]["n_slides"] == len(side.rows) + 1
    assert answer["result"]["dropped"] == {"S99": "inspect: unreadable"}
    assert answer["result"]["mean_fractions"] == {"tissue": 0.5}


def test_the_reference_grid_and_features_are_hits_served_with_hashes(side: Side) -> None:
    context = side.context()
    grid = {"spacing_um": 0.5, "tile_size_px": 224}
    tiles = call_tool(context, "tile_slides", grid)
    assert (tiles["exit_status"], tiles["cache"]) == ("ok", "hit")
    assert tiles["result"] == {"n_slides": 18, "n_with_tiles": 18, "n_tiles": 18 * 6}
    assert answer_of(tiles)["outputs"] == tiles["outputs"]
    features = call_tool(context, "extract_features", grid | {"encoder": "color_stats"})
    assert (features["exit_status"], features["cache"]) == ("ok", "hit")
    index, *stored = features["outputs"]
    assert answer_of(features)["outputs"] == [index]
    assert index["path"] == "outputs/round_0/features_index.csv"
    assert len(stored) == 18
    for entry in stored:
        assert entry["path"].startswith("store:reference/color_stats/")
        assert entry["sha256"] == sha256_file(context.stored(entry["path"]))


def test_an_unknown_tool_is_a_recorded_error_that_lists_the_registry(side: Side) -> None:
    context = side.context()
    row = call_tool(context, "rm_rf", {"x": 1})
    assert row["exit_status"] == "error"
    assert "'rm_rf'" in row["error"]
    assert "train_mil" in row["error"]
    assert [entry["event"] for entry in read_jsonl(context.tool_log)] == ["start", "end"]


def test_an_unexpected_exception_of_a_tool_is_a_recorded_error(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: object, args: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(document_tools, "read_table", broken)
    context = side.context()
    row = call_tool(context, "read_table", {"path": "data/splits.csv"})
    assert row["exit_status"] == "error"
    assert row["error"] == "ZeroDivisionError: nothing to divide by"
    assert row["outputs"] == []
    assert row["result"] == {}


@pytest.mark.parametrize("kind", [RuntimeError, InputError])
@pytest.mark.parametrize("long", [False, True])
def test_no_path_of_the_evaluator_is_in_an_error(
    side: Side, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], long: bool
) -> None:
    context = side.context()
    folders = [context.labels, context.slides_csv, context.exclusions_csv, context.features_dir / "a.h5",
               context.features_dir, context.store_dir / "b", context.slides_dir / "S00" / "c",
               context.slides_base, context.tool_log, context.receipts,
               context.workspace / "d.csv", context.workspace]  # fmt: skip

    def broken(_: object, args: object) -> None:
        padding = "x" * 300 if long else ""
        raise kind(padding + " ".join(f"[{folder}]" for folder in folders))

    monkeypatch.setattr(document_tools, "read_table", broken)
    error = call_tool(context, "read_table", {"path": "data/splits.csv"})["error"]
    assert str(side.root) not in error
    # A path that was cut short is a path as well.
    assert str(side.root)[: len(str(side.root)) // 2] not in error


@pytest.mark.parametrize("path", ["../labels.csv", "/etc/passwd", "data/../../x.csv", "a\0b"])
def test_a_path_outside_the_workspace_is_refused_and_not_hashed(side: Side, path: str) -> None:
    context = side.context()
    row = call_tool(context, "read_table", {"path": path})
    assert row["exit_status"] == "error"
    assert read_jsonl(context.tool_log)[0]["inputs"] == []


def test_a_link_out_of_the_workspace_is_refused(side: Side) -> None:
    context = side.context()
    (context.workspace / "data" / "truth.csv").symlink_to(side.labels)
    row = call_tool(context, "read_table", {"path": "data/truth.csv"})
    assert row["exit_status"] == "error"
    assert "symbolic link" in row["error"]


def test_store_keys_do_not_leave_the_store(side: Side) -> None:
    context = side.context()
    write_csv(
        context.path("outputs/round_0/features_index.csv"),
        ["slide_id", "encoder", "path"],
        [
            {"slide_id": row["slide_id"], "encoder": "x", "path": "store:reference/../labels.csv"}
            for row in side.rows
        ],
    )
    row = call_tool(context, "train_mil", VALID["train_mil"])
    assert row["exit_status"] == "error"
    assert "leaves its folder" in row["error"]


def test_concurrent_calls_keep_their_own_numbers(side: Side) -> None:
    context = side.context()

    def work() -> None:
        for _ in range(5):
            call_tool(context, "read_table", {"path": "data/splits.csv"})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read_jsonl(context.tool_log)
    assert [row["seq"] for row in rows] == list(range(1, 41))
    starts = [row["call_id"] for row in rows if row["event"] == "start"]
    ends = [row["call_id"] for row in rows if row["event"] == "end"]
    assert len(set(starts)) == 20
    assert sorted(starts) == sorted(ends)


def test_concurrent_processes_keep_their_own_numbers(side: Side, tmp_path: Path) -> None:
    context = side.context()
    (tmp_path / "context.json").write_text(context.model_dump_json())
    program = (
        "import sys\n"
        "from acpbench.harness.context import load_context\n"
        "from acpbench.harness.registry import call_tool\n"
        "context = load_context(sys.argv[1])\n"
        "for _ in range(10): call_tool(context, 'read_table', {'path': 'data/splits.csv'})\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "context.json")]
    for process in [subprocess.Popen(command) for _ in range(3)]:
        assert process.wait(60) == 0
    assert [row["seq"] for row in read_jsonl(context.tool_log)] == list(range(1, 61))


def test_an_interrupted_call_leaves_its_start_and_no_end(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(context: object, args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(document_tools, "read_table", interrupted)
    context = side.context()
    with pytest.raises(KeyboardInterrupt):
        call_tool(context, "read_table", {"path": "data/splits.csv"}, step_id="s3")
    (row,) = read_jsonl(context.tool_log)
    assert (row["event"], row["tool"], row["step_id"]) == ("start", "read_table", "s3")


def test_the_document_describes_every_tool_and_its_hash_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    document = registry_document()
    assert [tool["id"] for tool in document["tools"]] == list(TOOLS)
    for tool in document["tools"]:
        assert tool["args_schema"]["additionalProperties"] is False
        assert tool["result_schema"]["additionalProperties"] is False
        assert tool["result_schema"]["type"] == "object"
        assert tool["description"]
    json.dumps(document)
    before = registry_digest()
    monkeypatch.setitem(
        registry.TOOLS, "read_table", TOOLS["read_table"]._replace(description="Something else.")
    )
    assert registry_digest() != before


def test_results_are_typed_models_of_their_own() -> None:
    models = [tool.result_model() for tool in TOOLS.values()]
    assert all(issubclass(model, ToolResult) for model in models)
    assert len(set(models)) == len(models)


@pytest.mark.parametrize(
    ("value", "shown"), [(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")]
)
def test_numbers_that_json_has_not_are_refused_and_logged_as_text(
    side: Side, value: float, shown: str
) -> None:
    context = side.context()
    row = call_tool(context, "tile_slides", {"spacing_um": value, "tile_size_px": 224})
    assert row["exit_status"] == "error"
    assert "finite number" in row["error"]
    text = context.tool_log.read_text()
    start = json.loads(text.split("\n")[0], parse_constant=lambda name: pytest.fail(name))
    assert start["args"] == {"spacing_um": shown, "tile_size_px": 224}
    nested = call_tool(context, "read_table", {"path": "data/splits.csv", "x": [{"y": value}]})
    assert "finite number" in nested["error"]


def test_a_number_beyond_the_range_of_a_double_is_refused_too(side: Side) -> None:
    args = json.loads('{"spacing_um": 1e400, "tile_size_px": 224}')
    row = call_tool(side.context(), "tile_slides", args)
    assert (row["exit_status"], "finite number" in row["error"]) == ("error", True)


def test_arguments_that_are_too_large_or_too_deep_are_refused_without_being_kept(side: Side) -> None:
    context = side.context()
    large = call_tool(context, "read_table", {"path": "x" * (registry.MAX_ARGUMENT_BYTES + 1)})
    assert "at most" in large["error"]
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    assert "nested" in call_tool(context, "read_table", {"path": deep})["error"]
    assert "JSON object" in call_tool(context, "read_table", ["a"])["error"]  # type: ignore[arg-type]
    assert context.tool_log.stat().st_size < 5000


@pytest.mark.parametrize(
    ("tool_id", "args", "words"),
    [
        (
            "tile_slides",
            {"spacing": 0.5, "tile_size_px": 224},
            ["did you mean spacing_um?", "spacing_um: Field"],
        ),
        ("train_mil", {}, ["features_index: Field required (features_index.csv of"]),
        ("trainmil", {}, ["did you mean train_mil?"]),
        ("train_mil", {"features_index": "f", "dropout": 2, "lr": -1}, ["dropout", "lr"]),
        ("read_table", {"path": "data/split.csv"}, ["data holds slide_manifest.csv, splits.csv"]),
        ("read_table", {"path": "none/x.csv"}, ["none is empty or missing"]),
        ("segment_tissue", {"slide_id": "S1"}, ["not a usable slide", "has 18, such as S1"]),
    ],
)
def test_an_error_says_what_to_change(
    side: Side, tool_id: str, args: dict[str, Any], words: list[str]
) -> None:
    error = call_tool(side.context(), tool_id, args)["error"]
    for word in words:
        assert word in error


def test_a_start_row_has_the_arguments_in_force_and_what_the_evaluator_read(side: Side) -> None:
    context = side.context()
    call_tool(context, "inspect_slides", {})
    call_tool(context, "segment_tissue", {"slide_id": "S03"})
    first, _, second, _ = read_jsonl(context.tool_log)
    assert first["args"] == {}
    assert first["resolved"] == {"output_dir": "outputs/round_0"}
    told = {entry["path"]: entry["sha256"] for entry in first["inputs"]}
    assert told["evaluator:labels.csv"] == sha256_file(side.labels)
    assert told["evaluator:exclusions.csv"] == sha256_file(side.exclusions_csv)
    assert second["inputs"][0] == {"path": "slide:S03", "sha256": "0" * 64, "size": None}


def test_a_file_of_five_gigabytes_that_holds_nothing_is_neither_hashed_nor_read(side: Side) -> None:
    context = side.context()
    with open(context.path("outputs/sparse.csv"), "wb") as handle:
        handle.truncate(5 * 1024**3)
    row = call_tool(context, "read_table", {"path": "outputs/sparse.csv"})
    assert row["exit_status"] == "error"
    assert "larger than" in row["error"]
    assert row["duration_s"] < 5
    (start, _) = read_jsonl(context.tool_log)
    assert start["inputs"] == []


def slow(context: object, args: ToolArgs) -> None:
    for _ in track(range(1000), label="waiting"):
        for _ in track(range(3), label="inside"):
            pass


def test_a_cancelled_call_stops_at_its_next_step_and_says_so(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_tools, "read_table", slow)
    context = side.context()
    steps: list[tuple[str, int, int | None]] = []
    row = call_tool(
        context,
        "read_table",
        {"path": "data/splits.csv"},
        progress=lambda *step: steps.append(step),
        cancelled=lambda: len(steps) >= 3,
    )
    assert row["exit_status"] == "cancelled"
    assert (row["error"], row["outputs"], row["result"]) == ("cancelled by the caller", [], {})
    # The loop inside is no step of its own.
    assert steps == [("waiting", 0, 1000), ("waiting", 1, 1000), ("waiting", 2, 1000)]
    assert tool_calls(context.tool_log.parent)[0].exit_status == "cancelled"


def test_an_except_for_anything_does_not_swallow_a_cancellation(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stubborn(context: object, args: object) -> None:
        for _ in range(5):
            try:
                slow(context, args)  # type: ignore[arg-type]
            except Exception:
                continue

    monkeypatch.setattr(document_tools, "read_table", stubborn)
    row = call_tool(side.context(), "read_table", {"path": "data/splits.csv"}, cancelled=lambda: True)
    assert row["exit_status"] == "cancelled"


def test_a_half_written_line_of_a_killed_server_costs_no_other_row(side: Side) -> None:
    context = side.context()
    call_tool(context, "read_table", {"path": "data/splits.csv"})
    with open(context.tool_log, "ab") as handle:
        handle.write(b'{"event": "start", "seq": 3, "call_')
    row = call_tool(context, "read_table", {"path": "data/splits.csv"})
    assert row["exit_status"] == "ok"
    lines = context.tool_log.read_bytes().split(b"\n")
    rows = [json.loads(line) for line in lines if line and not line.endswith(b"call_")]
    assert [entry["seq"] for entry in rows] == [1, 2, 3, 4]
    assert [call.exit_status for call in tool_calls(context.tool_log.parent)] == ["ok", "ok"]


def test_a_full_disk_leaves_whole_rows_only(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    context = side.context()
    call_tool(context, "read_table", {"path": "data/splits.csv"})
    before = context.tool_log.read_bytes()
    real = call_log.os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:-10])

    monkeypatch.setattr(call_log.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        call_tool(context, "read_table", {"path": "data/splits.csv"})
    assert context.tool_log.read_bytes() == before


def test_a_row_longer_than_the_tail_that_is_read_still_counts(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "_TAIL_BYTES", 64)
    context = side.context()
    for _ in range(3):
        call_tool(context, "read_table", {"path": "data/splits.csv"})
    assert [row["seq"] for row in read_jsonl(context.tool_log)] == [1, 2, 3, 4, 5, 6]


def test_rows_hold_any_text(side: Side) -> None:
    context = side.context()
    call_tool(context, "read_table", {"path": "a\ud800b\u2028\x00"}, step_id="s\ud800")
    (start, end) = (json.loads(line) for line in context.tool_log.read_bytes().split(b"\n")[:2])
    assert start["tool"] == end["tool"] == "read_table"
    assert start["args"]["path"] == "a\ud800b\u2028\x00"
    assert start["step_id"] == "s\ud800"

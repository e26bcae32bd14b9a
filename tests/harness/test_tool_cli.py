"""``acp-bench tool call`` and ``serve`` as an agent's shell meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acpbench.core.files import read_jsonl
from acpbench.harness.context import CONTEXT_VARIABLE, RunContext
from tests.harness.build import Side

ACP_BENCH = str(Path(sys.executable).parent / "acp-bench")


@pytest.fixture
def context(side: Side) -> RunContext:
    made = side.context()
    (side.root / "context.json").write_text(made.model_dump_json())
    return made


def tool(
    context: RunContext, side: Side, *arguments: str, feed: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ACP_BENCH, "tool", *arguments],
        cwd=context.workspace,
        env=os.environ | {CONTEXT_VARIABLE: str(side.root / "context.json")},
        input=feed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_call_prints_one_json_line_and_exits_0(side: Side, context: RunContext) -> None:
    done = tool(
        context, side, "call", "read_table", "--args", '{"path": "data/splits.csv"}', "--step", "s5",
        "--round", "1",
    )  # fmt: skip
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["n_rows"] == len(side.rows)
    start, end = read_jsonl(context.tool_log)
    assert (start["step_id"], start["round_id"], end["exit_status"]) == ("s5", 1, "ok")


@pytest.mark.parametrize(
    ("tool_id", "arguments", "words"),
    [
        ("read_table", '{"path": "data/none.csv"}', ["data/none.csv"]),
        ("read_table", "{}", ["path", "Field required"]),
        ("tile_slides", '{"spacing_um": -1, "tile_size_px": 224}', ["spacing_um"]),
        ("no_such_tool", "{}", ["no_such_tool", "read_table"]),
    ],
)
def test_a_tool_error_exits_1_and_is_witnessed(
    side: Side, context: RunContext, tool_id: str, arguments: str, words: list[str]
) -> None:
    done = tool(context, side, "call", tool_id, "--args", arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    for word in words:
        assert word in answer["error"]
    assert read_jsonl(context.tool_log)[-1]["exit_status"] == "error"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--args", "{"], "--args"),
        (["--args", "[1]"], "JSON object"),
        (["--round", "6"], "--round"),
        (["--round", "x"], "--round"),
    ],
)
def test_a_malformed_command_exits_2_and_is_no_call(
    side: Side, context: RunContext, arguments: list[str], word: str
) -> None:
    done = tool(context, side, "call", "read_table", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert not context.tool_log.exists()


def test_a_damaged_context_exits_2_naming_file_and_field(side: Side, context: RunContext) -> None:
    value = json.loads((side.root / "context.json").read_text())
    del value["labels"]
    (side.root / "context.json").write_text(json.dumps(value))
    done = tool(context, side, "call", "read_table", "--args", '{"path": "data/splits.csv"}')
    assert done.returncode == 2
    assert "context.json" in done.stderr
    assert "labels" in done.stderr


def test_serve_answers_a_line_a_call_and_outlives_malformed_ones(side: Side, context: RunContext) -> None:
    good = json.dumps({"tool": "read_table", "args": {"path": "data/splits.csv"}, "step_id": "s1"})
    lines = ["{", "[]", "3", "null", '{"args": {}}', '"text"', '{"tool": "read_table", "args": [1]}', good,
             '{"tool": "nope"}', good]  # fmt: skip
    done = tool(context, side, "serve", feed="\n".join(lines) + "\n")
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    statuses = [answer["exit_status"] for answer in answers]
    assert statuses == ["error"] * 7 + ["ok", "error", "ok"]
    keys = {"call_id", "exit_status", "error", "result", "outputs", "cache"}
    assert all(set(answer) == keys for answer in answers)
    assert all("one JSON object a line" in answer["error"] for answer in answers[:6])
    rows = read_jsonl(context.tool_log)
    assert [row["tool"] for row in rows if row["event"] == "start"][-3:] == [
        "read_table", "nope", "read_table"]  # fmt: skip
    assert rows[-1]["seq"] == len(rows)


def test_serve_outlives_odd_arguments_and_logs_them(side: Side, context: RunContext) -> None:
    good = {"path": "data/splits.csv"}
    odd = [
        *({"args": {"path": path}} for path in (".", "./", "a" * 300, "a/" * 3000 + "b", "\ud800", "~")),
        *({"args": good, "step_id": step} for step in ("x" * 200, {"a": 1}, [[]], float("inf"))),
        *({"args": good, "round_id": number} for number in (-7, 6, "x", True, float("nan"))),
        {"args": {"path": "data/splits.csv", "max_rows": float("nan")}},
    ]
    calls = [{"tool": "read_table"} | call for call in [*odd, {"args": good}]]
    done = tool(context, side, "serve", feed="".join(json.dumps(call) + "\n" for call in calls))
    assert done.returncode == 0, done.stderr[-2000:]
    statuses = [json.loads(answer)["exit_status"] for answer in done.stdout.splitlines()]
    assert statuses == ["error"] * len(odd) + ["ok"]
    rows = read_jsonl(context.tool_log)
    assert [row["event"] for row in rows] == ["start", "end"] * len(calls)
    assert max(len(json.dumps(row)) for row in rows) < 20_000


@pytest.mark.parametrize(
    "arguments", ['{"path": "."}', '{"path": "\\ud800"}', '{"path": "' + "a" * 300 + '"}']
)
def test_a_call_with_an_odd_path_is_an_error_row(side: Side, context: RunContext, arguments: str) -> None:
    done = tool(context, side, "call", "read_table", "--args", arguments)
    assert done.returncode == 1 and json.loads(done.stdout)["exit_status"] == "error"
    assert [row["event"] for row in read_jsonl(context.tool_log)] == ["start", "end"]


def test_a_number_of_thousands_of_digits_is_told(side: Side, context: RunContext) -> None:
    done = tool(context, side, "call", "read_table", "--args", '{"max_rows": 1' + "0" * 5000 + "}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "--args" in done.stderr


def test_serve_ends_with_its_input(side: Side, context: RunContext) -> None:
    done = tool(context, side, "serve", feed="")
    assert (done.returncode, done.stdout) == (0, "")

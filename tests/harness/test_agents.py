"""Command-line agents through the collector, with stand-ins for them: how each end is recorded."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_jsonl, walk_files
from acpbench.harness import launch, preflight, tool_gate
from acpbench.trajectory.record import load_manifest, load_run, parse_time
from tests.harness.agents import FAMILIES, KEY, KEY_VARIABLE, collect, group, install, run_dir
from tests.harness.build import REPOSITORY, Side

REAL_SERVER = tool_gate.SERVER
FAKE_SERVER = (sys.executable, str(Path(__file__).parent / "fake_tool_server.py"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins."""
    return install(tmp_path_factory.mktemp("programs"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(tool_gate, "SERVER", FAKE_SERVER)
    monkeypatch.setattr(launch, "TERMINATE_GRACE_S", 1.0)


CASES = [
    # behaviour, family, limits, run_status, words of the reason, watchdog
    ("no_end", "claude_code", {}, "incomplete_stream", "no terminal event", None),
    ("no_end", "codex", {}, "incomplete_stream", "no terminal event", None),
    ("no_end", "opencode", {}, "incomplete_stream", "no end record", None),
    ("exit_3", "claude_code", {}, "agent_error", "exit code 3", None),
    ("killed", "codex", {}, "killed", "SIGKILL", None),
    ("killed", "opencode", {}, "killed", "SIGKILL", None),
    ("hang", "codex", {"idle_s": 2}, "timeout", "idle limit", "idle"),
    ("hang", "opencode", {"wall_s": 4}, "timeout", "wall limit", "wall"),
    ("hang_after_end", "claude_code", {"post_result_s": 1}, "completed", "was ended", "post_result"),
    ("hang_after_end", "opencode", {"post_result_s": 1}, "completed", "", "post_result"),
    ("no_tools", "claude_code", {}, "infra_error", "without the benchmark's tools", None),
    ("no_tools", "codex", {}, "infra_error", "never asked", None),
    ("no_tools", "opencode", {}, "infra_error", "never asked", None),
    ("is_error", "claude_code", {}, "agent_error", "is_error", None),
    ("background", "claude_code", {}, "incomplete_stream", "1 background tasks", None),
    ("refusal", "claude_code", {}, "refused", "refus", None),
    ("refusal", "codex", {}, "refused", "content filter", None),
    ("refusal", "opencode", {}, "refused", "content filter", None),
    ("storm", "claude_code", {"wall_s": 5}, "infra_error", "429", "wall"),
    ("storm", "codex", {"wall_s": 5}, "infra_error", "429", "wall"),
    ("storm", "opencode", {"idle_s": 30, "wall_s": 6}, "infra_error", "Too Many Requests", "wall"),
    ("gave_up_429", "claude_code", {}, "infra_error", "429", None),
    ("gave_up_429", "codex", {}, "infra_error", "429", None),
    ("gave_up_429", "opencode", {}, "infra_error", "429", None),
    ("recovered", "claude_code", {}, "completed", "success", None),
    ("context", "claude_code", {}, "agent_error", "prompt is too long", None),
    ("context", "codex", {}, "agent_error", "context window", None),
    ("context", "opencode", {}, "agent_error", "maximum context", None),
    ("talker", "claude_code", {"tokens": 5000}, "budget", "token limit", "tokens"),
    ("talker", "opencode", {"turns": 8}, "budget", "turns", "turns"),
    ("shouter", "claude_code", {"output_mb": 3}, "budget", "output", "output"),
    ("server_killed", "codex", {}, "infra_error", "tool server was ended by SIGKILL", None),
]


@pytest.mark.parametrize(
    ("behaviour", "harness", "limits", "run_status", "words", "watchdog"),
    CASES,
    ids=[f"{case[1]}-{case[0]}" for case in CASES],
)
def test_every_end_has_its_status_and_nothing_is_lost(
    side: Side,
    programs: Path,
    behaviour: str,
    harness: str,
    limits: dict[str, Any],
    run_status: str,
    words: str,
    watchdog: str | None,
) -> None:
    record = collect(side, group(harness, behaviour, programs, limits=limits))
    assert (record.run_status, record.watchdog) == (run_status, watchdog), record.status_reason
    assert words in record.status_reason
    assert load_run(run_dir(side)) == record
    stream = (run_dir(side) / "stream.jsonl").read_bytes()
    assert len(read_times(run_dir(side))) == stream.count(b"\n") + (
        not stream.endswith(b"\n") and bool(stream)
    )
    if behaviour != "no_tools":
        witnessed = read_jsonl(run_dir(side) / "tools.jsonl")
        assert [row["event"] for row in witnessed][:2] == ["start", "end"]
        assert b"read_table" in stream
    assert (run_dir(side) / "workspace" / "reports" / "report.md").read_text() == "# Report\n"


def read_times(folder: Path) -> list[dict[str, str]]:
    """Rows of ``stream.times.csv``."""
    with open(folder / "stream.times.csv", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("harness", FAMILIES)
def test_a_complete_run_records_what_ran_and_what_it_took(side: Side, programs: Path, harness: str) -> None:
    record = collect(side, group(harness, "complete", programs))
    assert (record.run_status, record.exit_code, record.signal) == ("completed", 0, None)
    assert record.harness.name == harness
    assert (
        record.harness.version
        == {"claude_code": "2.1.197", "codex": "0.171.0", "opencode": "1.18.33"}[harness]
    )
    assert record.model is not None
    assert (record.model["requested"], record.model["api_key_env"]) == ("complete", KEY_VARIABLE)
    assert record.model["reported"] == (None if harness == "codex" else "complete")
    assert record.sandbox == "unsandboxed"
    assert record.isolation is not None and record.isolation.kind == "none"
    # Claude's result counts fresh and cached input apart (20 + 100); Codex's total includes the cached;
    # OpenCode sums its two steps. Only Claude says what it cost.
    tokens = {"claude_code": (120, 10), "codex": (120, 10), "opencode": (20, 10)}[harness]
    assert record.tokens is not None
    assert (record.tokens["input_tokens"], record.tokens["output_tokens"]) == tokens
    assert record.cost_usd == (0.25 if harness == "claude_code" else None)
    assert (record.cost_source is None) == (record.cost_usd is None)
    assert record.digests.tool_list and record.digests.harness_config
    document = json.loads((run_dir(side) / "trajectory.json").read_text())
    called = [call for step in document["steps"] for call in step.get("tool_calls", [])]
    assert [call["function_name"] for call in called] == ["read_table"]
    moments = [step["timestamp"] for step in document["steps"] if "timestamp" in step]
    assert moments and moments == sorted(moments)
    assert record.t_start is not None and record.t_start <= moments[0]
    assert not run_dir(side).parent.joinpath("attempts", "1.home").exists()
    assert (run_dir(side) / "prompt.txt").read_text().startswith("Your working directory")


def test_the_real_tool_server_serves_an_agent(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_gate, "SERVER", REAL_SERVER)
    record = collect(side, group("opencode", "complete", programs, sandbox={"kind": "auto"}))
    assert record.run_status == "completed", record.status_reason
    start, end = read_jsonl(run_dir(side) / "tools.jsonl")
    assert (start["tool"], start["step_id"], start["round_id"]) == ("read_table", "look", 0)
    assert end["exit_status"] == "ok" and end["result"]["n_rows"] == len(
        {row["patient_id"] for row in side.rows}
    )


def test_two_runs_of_one_group_have_one_configuration(side: Side, programs: Path) -> None:
    import shutil

    first = collect(side, group("codex", "no_end", programs))
    shutil.rmtree(run_dir(side))
    second = collect(side, group("codex", "no_end", programs))
    assert second.attempt == 2
    assert first.digests == second.digests
    shutil.rmtree(run_dir(side))
    third = collect(side, group("codex", "no_end", programs, provider={"reasoning_effort": "low"}))
    assert third.digests.harness_config != first.digests.harness_config


def test_odd_bytes_are_kept_as_they_came(side: Side, programs: Path) -> None:
    record = collect(side, group("codex", "odd_bytes", programs))
    assert record.run_status == "completed"
    lines = (run_dir(side) / "stream.jsonl").read_bytes().split(b"\n")
    assert b"\x1b[1mwarning\x1b[0m \xff\xfe\r" in lines
    assert b'{"type":"text","text":"' + b"y" * 3_000_000 + b'"}' in lines
    assert lines[-1] == b'{"type":"half'
    assert len(read_times(run_dir(side))) == len(lines)


def test_the_agent_gets_the_named_variables_and_no_context(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORGANISATION", "hospital-4711")
    monkeypatch.setenv("GITHUB_TOKEN", "canary-token-0815")
    collect(side, group("claude_code", "survey", programs, pass_env=["ORGANISATION"]))
    seen = json.loads((run_dir(side) / "workspace" / "outputs" / "seen.json").read_text())["env"]
    assert seen["ORGANISATION"] == "[secret:ORGANISATION]"
    assert seen["ANTHROPIC_API_KEY"] == f"[secret:{KEY_VARIABLE}]"
    assert not {"GITHUB_TOKEN", KEY_VARIABLE, "ACPBENCH_RUN_CONTEXT"} & set(seen)
    assert seen["MCP_CONNECTION_NONBLOCKING"] == "false"
    home = run_dir(side).parent / "attempts" / "1.home"
    assert seen["HOME"] == str(home) and seen["CLAUDE_CONFIG_DIR"] == str(home / "claude")


def test_a_key_reaches_no_file_of_the_record(side: Side, programs: Path) -> None:
    record = collect(side, group("claude_code", "prints_key", programs))
    assert record.run_status == "completed"
    forms = [KEY.encode(), json.dumps(KEY)[1:-1].replace("/", "\\/").encode(), b"7391+abcdef"]
    for _, path in walk_files(run_dir(side).parent):
        data = path.read_bytes()
        assert not [form for form in forms if form in data], path
    mark = f"[secret:{KEY_VARIABLE}]"
    assert (run_dir(side) / "stream.jsonl").read_text().count(mark) >= 3
    assert (run_dir(side) / "stderr.log").read_text() == f"key {mark}\n"
    assert (run_dir(side) / "workspace/reports/key.txt").read_text().endswith(f"...{mark}\n")
    assert mark in (run_dir(side) / "tools.jsonl").read_text()
    assert "a secret was taken out of reports/key.txt" in record.notes


@pytest.mark.parametrize("harness", ["claude_code", "codex"])
def test_a_key_that_is_whole_only_when_decoded_reaches_no_trajectory(
    side: Side, programs: Path, harness: str
) -> None:
    collect(side, group(harness, "breaks_key", programs))
    said = (run_dir(side) / "trajectory.json").read_text()
    assert KEY not in said and f"[secret:{KEY_VARIABLE}]" in said
    assert KEY not in (run_dir(side) / "run.json").read_text()


def test_an_agent_that_burrows_loses_its_burrow_and_nothing_else(side: Side, programs: Path) -> None:
    record = collect(side, group("codex", "burrows", programs))
    assert record.run_status == "completed"
    assert "2 files or folders nested too deeply were removed" in record.notes
    manifest = (run_dir(side) / "manifest.csv").read_text()
    assert "reports/kept.md,4," in manifest and "deep.txt" not in manifest
    assert (run_dir(side) / "workspace").stat().st_mode & 0o700 == 0o700
    shutil.rmtree(run_dir(side).parent)  # nothing is left that cannot be removed, and no home


def test_an_agent_that_reaches_out_gains_nothing(side: Side, programs: Path) -> None:
    start = time.monotonic()
    record = collect(side, group("codex", "escapes", programs))
    assert record.run_status == "completed"
    assert time.monotonic() - start < 40
    # Its forged log is set aside, what was witnessed stands.
    rows = read_jsonl(run_dir(side) / "tools.jsonl")
    assert [row["event"] for row in rows] == ["start", "end"] and not any("forged" in row for row in rows)
    assert "forged" in (run_dir(side) / "tools.edited.jsonl").read_text()
    assert any("tools.jsonl was edited" in note for note in record.notes)
    # A file outside the workspace and what its links point at are no part of the record.
    manifest = (run_dir(side) / "manifest.csv").read_text()
    published = {name for name, _ in walk_files(run_dir(side))}
    assert "passwd" not in manifest and not [name for name in published if "passwd" in name or name == "x"]
    assert "root:" not in "".join(
        path.read_text(errors="replace")
        for name, path in walk_files(run_dir(side))
        if not name.endswith("sparse.bin")
    )
    # Five gigabytes of hole are listed, not read.
    (row,) = [line for line in manifest.splitlines() if "sparse" in line]
    assert row.startswith(f"outputs/sparse.bin,{5 * 1024**3},too-large,")
    assert "outputs/closed/inner.txt,1," in manifest
    # A time that was set by hand is not when the file was written.
    listed = load_manifest(run_dir(side))
    called = parse_time(rows[0]["t"])
    assert listed["plan/late.md"].mtime > called
    assert abs(listed["plan/late.md"].mtime - listed["outputs/sparse.bin"].mtime) < 0.5


def test_a_missing_key_or_harness_is_named_before_an_attempt_is_begun(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="'/no/such/claude' is not installed"):
        collect(side, group("claude_code", "complete", programs, executable="/no/such/claude"))
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(InputError, match=f"{KEY_VARIABLE} is not set"):
        collect(side, group("claude_code", "complete", programs))
    assert not (run_dir(side).parent / "attempts").exists()


def test_tools_that_do_not_answer_stop_the_run_before_it_costs(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_gate, "SERVER", (sys.executable, "-c", "raise SystemExit('no weights')"))
    record = collect(side, group("codex", "complete", programs))
    assert record.run_status == "infra_error"
    assert record.status_reason.startswith("pre-flight: ")
    assert (run_dir(side) / "stream.jsonl").read_bytes() == b""
    assert (record.exit_code, record.signal, record.cost_usd) == (None, None, None)


def test_a_harness_that_does_not_start_is_an_infrastructure_error(
    side: Side, programs: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "codex"
    broken.write_text("#!/bin/sh\necho 'libssl.so: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    record = collect(side, group("codex", "complete", programs, executable=str(broken)))
    assert record.run_status == "infra_error"
    assert "libssl.so: cannot open" in record.status_reason


def small_disk(folder: Path, megabytes: int) -> None:
    """A file system of that size at ``folder``; skips where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small file system can be mounted here ({done.stderr.strip()})")


@pytest.mark.parametrize("culprit", ["somebody else", "the agent"])
def test_a_full_disk_ends_the_run_and_loses_nothing(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    monkeypatch.setattr(launch, "RESERVE_BYTES", 4 * 1024 * 1024)
    monkeypatch.setattr(launch, "LOW_DISK_BYTES", 6 * 1024 * 1024)
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 8 * 1024 * 1024)
    disk = run_dir(side).parent
    small_disk(disk, 40)
    try:
        if culprit == "the agent":
            record = collect(side, group("codex", "fills", programs))
            # The agent may meet the full disk before the watchdog does.
            assert (record.run_status, record.watchdog in ("disk", None)) == ("agent_error", True)
            assert "the agent filled the disk" in record.status_reason
        else:
            filler = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "import sys, time\ntime.sleep(4)\nopen(sys.argv[1], 'wb').write(b'x' * 34_000_000)",
                    str(disk / "other"),
                ],
                stderr=subprocess.DEVNULL,
            )
            record = collect(side, group("codex", "hang", programs))
            filler.wait()
            assert (record.run_status, record.watchdog) == ("infra_error", "disk"), record.status_reason
        assert load_run(run_dir(side)) == record
        lines = (run_dir(side) / "stream.jsonl").read_bytes().split(b"\n")
        assert all(isinstance(json.loads(line), dict) for line in lines if line)
        assert len(read_times(run_dir(side))) == len(lines) - 1
        assert [row["event"] for row in read_jsonl(run_dir(side) / "tools.jsonl")] == ["start", "end"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_too_little_room_is_found_before_the_launch(
    side: Side, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 10**18)
    record = collect(side, group("opencode", "complete", programs))
    assert record.run_status == "infra_error"
    assert "MiB are free" in record.status_reason


COLLECT = """
import sys
from pathlib import Path
from acpbench.harness import tool_gate
from tests.harness.agents import collect, group
from tests.harness.build import Side
tool_gate.SERVER = tuple(sys.argv[3:])
collect(Side(Path(sys.argv[1])), group("codex", "hang", Path(sys.argv[2])))
"""


def test_a_killed_collector_takes_its_agent_along_and_the_next_one_begins_anew(
    side: Side, programs: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COLLECT, str(side.root), str(programs), *FAKE_SERVER], cwd=REPOSITORY
    )
    stream = run_dir(side).parent / "attempts" / "1" / "stream.jsonl"
    deadline = time.monotonic() + 60
    while not stream.exists() or b"thinking" not in stream.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.wait()
    workspace = os.fsencode(stream.parent / "workspace")
    deadline = time.monotonic() + 20
    while left := [folder.name for folder in Path("/proc").glob("[0-9]*") if working_in(folder, workspace)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert not (run_dir(side) / "run.json").exists()
    record = collect(side, group("codex", "complete", programs))
    assert (record.attempt, record.run_status) == (2, "completed")
    assert b"thinking" in stream.read_bytes()
    assert not (stream.parent / "run.json").exists()


def working_in(process: Path, folder: bytes) -> bool:
    """Whether a process lives and works in a folder."""
    try:
        return (
            os.readlink(os.fsencode(process / "cwd")) == folder
            and b"Z" not in ((process / "stat").read_bytes().rpartition(b")")[2].split()[:1])
        )
    except OSError:
        return False


def test_a_signal_of_the_wall_limit_is_recorded(side: Side, programs: Path) -> None:
    record = collect(side, group("codex", "hang", programs, limits={"wall_s": 3}))
    assert (record.run_status, record.signal) == ("timeout", signal.SIGTERM)
    assert record.limits["wall_s"] == 3

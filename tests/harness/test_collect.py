"""Collecting a run: how it ended, what stays of it, and that nobody pays for it twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from acpbench.core.config import TaskBinding
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_jsonl, sha256_file, walk_files, write_json
from acpbench.harness import launch
from acpbench.harness.attempts import DECLARED
from acpbench.harness.collect import collect_run
from acpbench.harness.scripted_adapter import ScriptedAdapter
from acpbench.harness.settings import agent_inputs, settings_from_study
from acpbench.trajectory.record import RunRecord, load_manifest, load_run
from tests.harness.build import REPOSITORY, Side

FINISH = "import json; print(json.dumps({'type': 'result'}), flush=True)\n"
Stub = Callable[[str], None]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace the agent by a Python program."""
    prepare = ScriptedAdapter.prepare

    def use(program: str) -> None:
        monkeypatch.setattr(
            ScriptedAdapter,
            "prepare",
            lambda self, run: replace(prepare(self, run), command=[sys.executable, "-c", program]),
        )

    return use


def run_dir(side: Side) -> Path:
    return side.root / "results" / "trajectories" / "scripted_complete" / side.task_id / "1" / "run"


@pytest.mark.parametrize(
    ("program", "run_status", "exit_code", "sign"),
    [
        (FINISH, "completed", 0, None),
        ("print('not json')\n" + FINISH, "completed", 0, None),
        ("import os; os.kill(os.getpid(), 9)", "killed", None, 9),
        (FINISH + "import os; os.kill(os.getpid(), 11)", "killed", None, 11),
        ("raise SystemExit(3)", "agent_error", 3, None),
        (FINISH + "raise SystemExit(1)", "agent_error", 1, None),
        ("raise RuntimeError('no key')", "agent_error", 1, None),
        ('print(\'{"type": "message", "text": "hi"}\')', "incomplete_stream", 0, None),
        ("print('{\"type\": \"resu', end='')", "incomplete_stream", 0, None),
        ("", "incomplete_stream", 0, None),
    ],
)
def test_every_end_is_a_complete_record_with_its_own_status(
    side: Side, agent: Stub, program: str, run_status: str, exit_code: int | None, sign: int | None
) -> None:
    agent(program)
    record = collect_run(side.settings("complete"), run_dir(side))
    assert (record.run_status, record.exit_code, record.signal) == (run_status, exit_code, sign)
    assert record.status_reason
    assert load_run(run_dir(side)) == record
    names = {path.name for path in run_dir(side).iterdir()}
    assert names == {"run.json", "stream.jsonl", "stream.times.csv", "stderr.log", "tools.jsonl",
                     "trajectory.json", "manifest.csv", "workspace"}  # fmt: skip
    assert record.window_s[1] - record.window_s[0] == pytest.approx(record.wall_s, abs=0.01)


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_wall_limit_ends_a_run_even_one_that_ignores_the_request(
    side: Side, agent: Stub, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(launch, "TERMINATE_GRACE_S", 0.4)
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    agent(ignore + 'import time; print(\'{"type": "message"}\', flush=True); time.sleep(60)')
    start = time.monotonic()
    record = collect_run(side.settings("complete", wall_limit_s=0.8), run_dir(side))
    assert time.monotonic() - start < 6
    assert record.run_status == "timeout"
    assert record.signal == (signal.SIGKILL if stubborn else signal.SIGTERM)
    assert (record.limits, record.watchdog) == ({"wall_s": 0.8}, "wall")
    assert read_jsonl(run_dir(side) / "stream.jsonl") == [{"type": "message"}]


def test_a_terminal_event_does_not_excuse_a_timeout(side: Side, agent: Stub) -> None:
    agent(FINISH + "import time; time.sleep(60)")
    assert collect_run(side.settings("complete", wall_limit_s=0.6), run_dir(side)).run_status == "timeout"


def test_processes_that_the_agent_leaves_behind_are_ended(side: Side, agent: Stub) -> None:
    agent(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('outputs/pid', 'w').write(str(child.pid))\n" + FINISH
    )
    start = time.monotonic()
    assert collect_run(side.settings("complete"), run_dir(side)).run_status == "completed"
    assert time.monotonic() - start < 9
    with pytest.raises(ProcessLookupError):
        os.kill(int((run_dir(side) / "workspace" / "outputs" / "pid").read_text()), 0)


def test_the_agent_sees_only_the_allowed_environment(
    side: Side, agent: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "SLURM_JOB_ID", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "canary-7391")
    agent(
        "import json, os, sys\n"
        "print(json.dumps({'type': 'message', 'text': json.dumps(dict(os.environ))}))\n"
        "print(json.dumps({'type': 'message', 'text': repr(sys.stdin.read())}))\n" + FINISH
    )
    collect_run(side.settings("complete"), run_dir(side))
    told, stdin, _ = read_jsonl(run_dir(side) / "stream.jsonl")
    seen = json.loads(told["text"])
    allowed = {"PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME", "ACPBENCH_RUN_CONTEXT", "OMP_NUM_THREADS",
               "PYTHONUNBUFFERED", "PYTHONHASHSEED"}  # fmt: skip
    # LC_CTYPE is set by Python itself where the locale is C.
    assert set(seen) - {"LC_CTYPE"} <= allowed
    assert seen["HOME"] != os.environ.get("HOME")
    assert stdin["text"] == "''"
    for _, path in walk_files(run_dir(side)):
        assert b"canary-7391" not in path.read_bytes()


def test_the_record_lists_what_was_left_and_follows_no_link(side: Side, agent: Stub) -> None:
    agent(
        "import os\n"
        "open('outputs/made.csv', 'w').write('a\\n1\\n')\n"
        f"os.symlink({str(side.labels)!r}, 'outputs/truth.csv')\n"
        "os.symlink('.', 'outputs/loop')\n"
        "os.mkfifo('outputs/pipe')\n"
        "open('logs/binary.log', 'wb').write(b'\\xff\\x00')\n"
        "os.remove('TASK.md')\n" + FINISH
    )
    collect_run(side.settings("complete"), run_dir(side))
    manifest = load_manifest(run_dir(side))
    assert manifest["outputs/made.csv"].size == 4
    assert manifest["outputs/made.csv"].sha256 == sha256_file(run_dir(side) / "workspace/outputs/made.csv")
    assert not {"outputs/truth.csv", "outputs/pipe", "TASK.md"} & set(manifest)
    assert not [name for name in manifest if name.startswith("outputs/loop")]
    published = {name for name, _ in walk_files(run_dir(side) / "workspace")}
    assert published == set(manifest)


def test_attempts_stay_and_the_last_one_is_shown(side: Side, agent: Stub) -> None:
    agent("raise SystemExit(3)")
    first = collect_run(side.settings("complete"), run_dir(side))
    assert collect_run(side.settings("complete"), run_dir(side)) == first
    agent(FINISH)
    shutil.rmtree(run_dir(side))
    second = collect_run(side.settings("complete"), run_dir(side))
    attempts = run_dir(side).parent / "attempts"
    assert (first.attempt, second.attempt) == (1, 2)
    assert (load_run(attempts / "1").run_status, load_run(attempts / "2").run_status) == (
        "agent_error", "completed")  # fmt: skip
    assert load_run(run_dir(side)).attempt == 2
    same = {"harness_config": None}  # another program is another configuration
    assert first.digests.model_copy(update=same) == second.digests.model_copy(update=same)
    assert not list(attempts.glob("*/context.json"))


def test_a_second_collector_waits_and_takes_the_finished_record(side: Side, agent: Stub) -> None:
    agent("import time; time.sleep(1.5)\n" + FINISH)
    records: list[RunRecord] = []

    def work() -> None:
        records.append(collect_run(side.settings("complete"), run_dir(side)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert len(records) == 3
    assert len({record.t_start for record in records}) == 1
    assert [path.name for path in (run_dir(side).parent / "attempts").iterdir() if path.is_dir()] == ["1"]


def clear_declared(side: Side) -> None:
    """What Snakemake does before it starts a job anew."""
    for name in DECLARED:
        (run_dir(side) / name).unlink(missing_ok=True)


@pytest.mark.parametrize("lost", [DECLARED, DECLARED[:1], DECLARED[1:3]])
def test_a_finished_attempt_that_no_workflow_accepted_is_shown_again(
    side: Side, agent: Stub, lost: tuple[str, ...]
) -> None:
    agent(FINISH)
    first = collect_run(side.settings("complete"), run_dir(side))
    for name in lost:
        # Or the restart of a user who is not root would end in ProtectedOutputException.
        assert stat.S_IMODE((run_dir(side) / name).stat().st_mode) == 0o644
        (run_dir(side) / name).unlink()
    agent("raise SystemExit(3)")
    assert collect_run(side.settings("complete"), run_dir(side)) == first
    attempt = run_dir(side).parent / "attempts" / "1"
    assert set(dict(walk_files(attempt))) == set(dict(walk_files(run_dir(side))))
    assert not attempt.with_name("2").exists()


@pytest.mark.parametrize("accepted", [True, False])
def test_a_cleared_record_is_run_again_when_it_was_accepted_or_deleted_whole(
    side: Side, agent: Stub, accepted: bool
) -> None:
    agent(FINISH)
    collect_run(side.settings("complete"), run_dir(side))
    if accepted:
        for name in DECLARED:
            (run_dir(side) / name).chmod(0o444)
        clear_declared(side)
    else:
        shutil.rmtree(run_dir(side))
        run_dir(side).mkdir()
    assert collect_run(side.settings("complete"), run_dir(side)).attempt == 2


def test_publishing_links_every_file_and_the_record_last(
    side: Side, agent: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: list[str] = []
    link = os.link

    def noted(source: Path, target: Path) -> None:
        linked.append(target.name)
        link(source, target)

    monkeypatch.setattr(os, "link", noted)
    agent("open('scripts/run.sh', 'w').write('true')\n" + FINISH)
    collect_run(side.settings("complete"), run_dir(side))
    assert linked[-1] == "run.json"
    assert linked.count("run.json") == 1
    attempt = run_dir(side).parent / "attempts" / "1"
    inside = dict(walk_files(attempt))
    shown = dict(walk_files(run_dir(side)))
    assert set(inside) == set(shown)
    for name, path in shown.items():
        assert path.stat().st_ino == inside[name].stat().st_ino
        assert stat.S_IMODE(path.stat().st_mode) == (0o644 if name in DECLARED else 0o444)


KILLED_WHILE_PUBLISHING = """
import os, sys
from pathlib import Path
from acpbench.harness import collect
from tests.harness.build import Side
side = Side(Path(sys.argv[1]))
link, count = os.link, 0
def dying(source, target):
    global count
    count += 1
    if count > {after} or (target.name, {after}) == ("run.json", float("inf")):
        os.kill(os.getpid(), 9)
    link(source, target)
os.link = dying
collect.collect_run(side.settings("report_only"), Path(sys.argv[2]))
"""


@pytest.mark.parametrize(("after", "attempt"), [(0, 2), (5, 2), ('float("inf")', 1)])
def test_a_collector_killed_while_publishing_leaves_no_record_that_is_trusted(
    tmp_path: Path, after: int | str, attempt: int
) -> None:
    target = tmp_path / "results" / "1" / "run"
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_PUBLISHING.format(after=after), str(tmp_path), str(target)],
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (target / "run.json").exists()
    with pytest.raises(InputError, match=r"run\.json"):
        load_run(target)
    record = collect_run(Side(tmp_path / "again").settings("report_only"), target)
    # Killed at its last link, the attempt was finished: it is shown, not paid for again.
    assert (record.attempt, record.run_status) == (attempt, "completed")
    shown = target.parent / "attempts" / str(attempt)
    assert set(dict(walk_files(target))) == set(dict(walk_files(shown)))


def test_the_scripted_agent_works_as_a_child_process(side: Side) -> None:
    record = collect_run(side.settings("crash"), run_dir(side))
    assert (record.run_status, record.signal) == ("killed", 9)
    calls = read_jsonl(run_dir(side) / "tools.jsonl")
    ended = [row["tool"] for row in calls if row["event"] == "end" and row["exit_status"] == "ok"]
    assert ended == ["validate_spec", "inspect_slides", "tile_slides", "extract_features", "read_table"]
    document = json.loads((run_dir(side) / "trajectory.json").read_text())
    called = [call["function_name"] for step in document["steps"] for call in step.get("tool_calls", [])]
    assert [name for name in called if name in ended] == ended
    assert {"read_file", "write_file"} <= set(called)


@pytest.mark.parametrize("field", ["group", "replicate"])
def test_an_id_that_is_a_path_is_refused_before_anything_is_written(side: Side, field: str) -> None:
    with pytest.raises(InputError, match=field):
        collect_run(side.settings("complete", **{field: "../x"}), run_dir(side))
    assert not run_dir(side).parent.exists()


def study(**changes: object) -> dict[str, object]:
    config = {
        "study": "s",
        "cohorts": {"demo": {"manifest": "tasks/demo/cohort.csv", "generator": "synthetic_he"}},
        "tasks": {"demo_survival": {"definition": "tasks/demo/demo_survival.yaml", "cohort": "demo",
                                    "time_column": "time_months", "event_column": "event"}},
        "trajectories": {"groups": ["g"], "wall_limit_s": 60, "skills": None, "test_evaluations": 2},
    }  # fmt: skip
    return {
        "config": config,
        "groups": [{"id": "g", "label": "g", "harness": "scripted", "policy": "crash"}],
    } | changes


def listed(folder: Path, task: str = "demo_survival", encoder: str = "color_stats") -> Path:
    """``agent_inputs.json`` of a study whose task is bound to three small files."""
    for name in ("labels.csv", "slides.csv", "index.csv"):
        (folder / name).write_text(f"{name}\n")
    binding = TaskBinding.model_validate(study()["config"]["tasks"]["demo_survival"])
    files = [folder / name for name in ("labels.csv", "slides.csv", "index.csv")]
    write_json(folder / "agent_inputs.json", agent_inputs(task, binding, encoder, *files))
    return folder / "agent_inputs.json"


def test_settings_follow_the_study(tmp_path: Path) -> None:
    write_json(tmp_path / "study.json", study())
    settings = settings_from_study(tmp_path / "study.json", listed(tmp_path), "g", "2", tmp_path / "results")
    assert (settings.harness.root.policy, settings.replicate, settings.test_evaluations) == ("crash", "2", 2)
    assert (settings.label_column, settings.skills, settings.wall_limit_s) == ("time, event", None, 60)
    assert (settings.encoder, settings.labels) == ("color_stats", tmp_path / "labels.csv")
    assert settings.task_file.name == "demo_survival.yaml"
    assert settings.exclusions_csv == tmp_path / "exclusions.csv"
    assert settings.slides_base == tmp_path / "results" / "generated" / "demo"
    assert (settings.tiler.spacing_um, settings.tiler.tile_size_px) == (0.5, 224)


@pytest.mark.parametrize("name", ["labels.csv", "slides.csv"])
def test_a_file_that_is_not_the_listed_one_is_refused(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "study.json", study())
    inputs = listed(tmp_path)
    (tmp_path / name).write_text("other\n")
    with pytest.raises(InputError, match=f"{name}.*has changed since agent_inputs.json"):
        settings_from_study(tmp_path / "study.json", inputs, "g", "1", tmp_path)


@pytest.mark.parametrize(("group", "task"), [("nobody", "demo_survival"), ("g", "lung_os")])
def test_a_group_or_task_outside_the_study_is_named(tmp_path: Path, group: str, task: str) -> None:
    write_json(tmp_path / "study.json", study())
    with pytest.raises(InputError, match=group if group == "nobody" else task):
        settings_from_study(tmp_path / "study.json", listed(tmp_path, task), group, "1", tmp_path)


def test_no_test_label_is_in_the_whole_record_of_a_full_run(side: Side) -> None:
    record = collect_run(side.settings("complete"), run_dir(side))
    assert record.run_status == "completed"
    tested = {row["patient_id"]: row["label"] for row in side.rows if row["split"] == "test"}
    tables = [path for name, path in walk_files(run_dir(side)) if name.endswith(".csv")]
    assert len(tables) >= 6
    for path in tables:
        for row in read_csv(path):
            patient = row.get("case_id") or row.get("patient_id")
            if patient in tested:
                truth = {key: value for key, value in row.items() if key in ("y_true", "label")}
                assert not any(truth.values()), path


def test_the_order_of_stream_and_tool_log_can_be_told_within_a_millisecond(side: Side) -> None:
    collect_run(side.settings("crash"), run_dir(side))
    for moment in [row["t"] for row in read_jsonl(run_dir(side) / "tools.jsonl")]:
        assert len(moment) == len("2026-01-01T00:00:00.000000Z")
    document = json.loads((run_dir(side) / "trajectory.json").read_text())
    moments = [step["timestamp"] for step in document["steps"]]
    assert moments == sorted(moments)
    assert len(set(moments)) == len(moments)

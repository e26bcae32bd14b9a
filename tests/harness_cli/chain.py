"""A run in a namespace of its own, and the scoring chain on its record."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from acpbench.core.files import read_json, read_jsonl, walk_files, write_json
from acpbench.harness.sandbox import bubblewrap
from acpbench.trajectory.record import RunRecord, iso_time, load_run, parse_time
from tests.harness.build import REPOSITORY
from tests.harness_cli.cohort import SlideSide
from tests.harness_cli.programs import namespace

KEY_VARIABLE = "SCRIPTED_MODEL_KEY"
KEY = "dummy-key/of-a-model-that-is-none"
RUN_TIMEOUT_S = 480
STEP_TIMEOUT_S = 240
WALL_S = 400
RUBRIC = REPOSITORY / "tasks" / "rubric.yaml"
PROGRAM = Path(sys.executable).parent / "acp-bench"


@dataclass(frozen=True)
class Finished:
    """A record with its scores."""

    harness: str
    policy: str
    run_dir: Path

    @cached_property
    def record(self) -> RunRecord:
        """``run.json``."""
        return load_run(self.run_dir)

    @property
    def workspace(self) -> Path:
        """What the agent left."""
        return self.run_dir / "workspace"

    @property
    def statuses(self) -> dict[str, str]:
        """Final status of every item."""
        return {row["item_id"]: row["final_status"] for row in read_jsonl(self.scored / "adjudicated.jsonl")}

    @property
    def scored(self) -> Path:
        """Folder of checks, judgements and scores."""
        return self.run_dir.parent / "scored"

    def score(self, name: str) -> dict[str, Any]:
        """One of the score files."""
        return read_json(self.scored / f"{name}.json")

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """Witnessed calls: tool, arguments, step, round, outcome, hit or miss."""
        rows = read_jsonl(self.run_dir / "tools.jsonl")
        ends = {row["call_id"]: row for row in rows if row["event"] == "end"}
        return [
            (row["tool"], row["args"], row["step_id"], row["round_id"],
             ends[row["call_id"]]["exit_status"], ends[row["call_id"]]["cache"])
            for row in rows
            if row["event"] == "start"
        ]  # fmt: skip

    @property
    def requested(self) -> list[dict[str, Any]]:
        """Tool calls that the harness's stream shows."""
        steps = read_json(self.run_dir / "trajectory.json")["steps"]
        return [call for step in steps for call in step.get("tool_calls") or []]

    def files(self) -> dict[str, Any]:
        """Files the agent left, without the ids of the evaluator's receipts; JSON by its values.

        Claude Code passes a tool's structured answer on as JavaScript writes it: 1.0 comes back as 1.
        """
        own = ("plan/", "scripts/", "outputs/", "reports/", "reflection/", "logs/", "memory/")
        receipts = self.run_dir / "receipts.jsonl"
        ids = [row["receipt_id"] for row in read_jsonl(receipts)] if receipts.is_file() else []
        found: dict[str, Any] = {}
        for name, path in walk_files(self.workspace):
            if name.startswith(own):
                text = path.read_bytes().decode("latin-1")
                for receipt in ids:
                    text = text.replace(receipt, "RECEIPT")
                found[name] = json.loads(text) if name.endswith(".json") else text
        return found


def entry(harness: str, policy: str, program: Path | None) -> dict[str, Any]:
    """The group's entry. The model's address is filled in when there is one."""
    if program is None:
        return {"label": policy, "harness": "scripted", "policy": policy}
    boxed = bubblewrap()[0] is not None
    return {
        "label": f"{harness} behind the scripted model",
        "harness": harness,
        "model": "scripted",
        "executable": str(program),
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": KEY_VARIABLE,
        "limits": {"wall_s": WALL_S, "idle_s": 200},
        "sandbox": {"kind": "bubblewrap", "network": "model_only"} if boxed else {"kind": "none"},
    }


def collect(side: SlideSide, root: Path, harness: str, policy: str, program: Path | None) -> Finished:
    """Run it alone in a network namespace, with an environment of nothing but what is written here."""
    name = f"{harness}_{policy}"
    folder = root / name
    home = folder / "home"
    home.mkdir(parents=True)
    settings = side.settings(
        policy,
        harness=entry(harness, policy, program),
        group=name,
        skills=REPOSITORY / "skills",
        # Of its own: each run tiles the slides and extracts the features anew.
        store_dir=folder / "store",
    )
    run_dir = folder / "record" / "1" / "run"
    order = folder / "order.json"
    write_json(
        order, {"settings": settings.model_dump(mode="json"), "policy": policy, "run_dir": str(run_dir)}
    )
    node = Path(shutil.which("node") or "/usr/bin/node").parent
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{node}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        KEY_VARIABLE: KEY,
    }
    process = subprocess.Popen(
        [*namespace(), sys.executable, "-m", "tests.harness_cli.drive", str(order)],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        raise AssertionError(f"{name} did not end within {RUN_TIMEOUT_S} s: {said[-2000:]}") from None
    assert process.returncode == 0, said[-3000:]
    finished = Finished(harness, policy, run_dir)
    assert finished.record.run_status != "infra_error", finished.record.status_reason
    grade(finished, side)
    return finished


def received_late(finished: Finished, folder: Path, seed: int) -> Finished:
    """A copy of a record whose stream was read up to 0.3 s late, as on a busy machine, in its own order."""
    late = Finished(finished.harness, finished.policy, folder / "1" / "run")
    shutil.copytree(finished.run_dir, late.run_dir)
    draw, latest = random.Random(seed), 0.0
    document = read_json(late.run_dir / "trajectory.json")
    for step in document["steps"]:
        if "timestamp" in step:
            latest = max(
                latest, parse_time(step["timestamp"]) + draw.choice((0.01, 0.01, 0.3)) * draw.random()
            )
            step["timestamp"] = iso_time(latest)
            for call in step.get("tool_calls") or []:
                call["extra"] = call.get("extra", {}) | {"t": iso_time(latest)}
    write_json(late.run_dir / "trajectory.json", document)
    return late


def grade(finished: Finished, side: SlideSide) -> None:
    """The scoring chain, as the workflow runs it."""
    out, run, task = finished.scored, str(finished.run_dir), str(side.task_file)
    checks, judged, final = (str(out / f"{name}.jsonl") for name in ("checks", "judgements", "adjudicated"))
    common = ["--task", task]
    for words in (
        ["check", run, *common, "--labels", str(side.labels), "--rubric", str(RUBRIC), "--output", checks],
        ["judge", run, *common, "--rubric", str(RUBRIC), "--output", judged],
        ["adjudicate", "--checks", checks, "--judgements", judged, "--output", final],
        ["score", run, *common, "--labels", str(side.labels), "--adjudicated", final,
         "--output-dir", str(out)],
    ):  # fmt: skip
        done = subprocess.run(
            [str(PROGRAM), *words], capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"acp-bench {words[0]}: {done.stderr[-2000:]}"


def living(home: Path) -> list[str]:
    """Processes that still have a run's home in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={home}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def row_of(finished: Finished) -> dict[str, Any]:
    """The line of a run in the table beside the others."""
    record = finished.record
    workflow = finished.score("workflow_score")
    tokens = record.tokens or {}
    return {
        "run": f"{finished.harness} {record.harness.version}, {finished.policy}",
        "run_status": record.run_status,
        "input tokens": tokens.get("input_tokens"),
        "output tokens": tokens.get("output_tokens"),
        "tool calls": len(finished.requested),
        "registry calls": len(finished.calls),
        "item_weighted": workflow.get("item_weighted"),
        "stage_mean": workflow.get("stage_mean"),
        "CWAS-3": finished.score("cwas3")["score"],
        "R6": finished.score("r6")["score"],
        "wall_s": record.wall_s,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""

    def shown(value: Any) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([shown(row[head]) for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def differing(one: Finished, other: Finished) -> dict[str, tuple[str, str]]:
    """Items with another final status: item → (of ``one``, of ``other``)."""
    first, second = one.statuses, other.statuses
    assert set(first) == set(second)
    return {item: (first[item], second[item]) for item in first if first[item] != second[item]}

"""A small, complete record for tests: a plausible run of a binary task with two reflection rounds.

Numbers are worked out by hand. Validation patients V1, V2 are wildtype, V3, V4 mutant.

==========  ====================  =====================================  =====
round       probability of mutant  pairs (mutant above wildtype)          AUROC
==========  ====================  =====================================  =====
0           .2 .6 | .4 .8          .4>.2, .8>.2, .8>.6 of 4               0.75
1           .2 .3 | .4 .8          4 of 4                                 1.00
2           .2 .7 | .4 .6          .4>.2, .6>.2 of 4                      0.50
==========  ====================  =====================================  =====

Round 0: Brier (.04+.36+.36+.04)/4 = .2; each case alone in its bin, so ECE (.2+.6+.6+.2)/4 = .4; at 0.5
one of two is right in each class, so accuracy, balanced accuracy and F1 are .5; average precision
.5*1 + .5*2/3 = .8333.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from acpbench.tasks.models import Task
from acpbench.trajectory.atif import AtifBuilder
from acpbench.trajectory.record import iso_time, write_manifest
from tests.times import set_times

T0 = 1_750_000_000.0
END = 1_000.0
ROUND_FOLDERS = ["outputs/round_0", "reflection/round_1", "reflection/round_2"]
MUTANT = {0: [0.2, 0.6, 0.4, 0.8], 1: [0.2, 0.3, 0.4, 0.8], 2: [0.2, 0.7, 0.4, 0.6]}
AUROC = {0: 0.75, 1: 1.0, 2: 0.5}
VALIDATION = ["V1", "V2", "V3", "V4"]
TEST = ["X1", "X2"]
TRAIN = ["A1", "A2", "A3", "A4"]
TRUTH = dict.fromkeys(("V1", "V2", "X1", "A1", "A2"), "wildtype")
TRUTH |= dict.fromkeys(("V3", "V4", "X2", "A3", "A4"), "mutant")
REGISTRY = {
    "inspect_slides": "slide_processing",
    "tile_slides": "slide_processing",
    "extract_features": "feature_extraction",
    "train_mil": "model",
    "evaluate_predictions": "evaluation",
    "evaluate_test": "evaluation",
    "validate_report": "report",
    "read_table": "verification",
    "validate_spec": "verification",
}
SPEC_STEPS = [
    ("s1", "inspect_slides", ["data/slide_manifest.csv"], ["outputs/round_0/slide_manifest.csv"]),
    ("s2", "tile_slides", ["outputs/round_0/slide_manifest.csv"], ["outputs/round_0/tiles_index.csv"]),
    ("s3", "extract_features", ["outputs/round_0/tiles_index.csv"], ["outputs/round_0/features_index.csv"]),
    (
        "s4",
        "train_mil",
        ["outputs/round_0/features_index.csv", "data/splits.csv"],
        ["outputs/round_0/model.pt", "outputs/round_0/predictions.csv"],
    ),
    (
        "s5",
        "evaluate_predictions",
        ["outputs/round_0/predictions.csv"],
        ["outputs/round_0/metrics.json"],
    ),
    ("s6", "validate_report", ["outputs/round_0/metrics.json"], ["reports/report.json"]),
]


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """CSV text."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def label_rows() -> list[dict[str, str]]:
    """The evaluator's label table: one slide a patient."""
    rows = []
    for split, fold, patients in (
        ("test", "0", TEST),
        ("validation", "1", VALIDATION),
        ("train", "2", TRAIN),
    ):
        for name in patients:
            rows.append(
                {
                    "slide_id": f"{name}-S",
                    "patient_id": name,
                    "fold": fold,
                    "split": split,
                    "label": TRUTH[name],
                    "time": "",
                    "event": "",
                }
            )
    return rows


class RunBuilder:
    """Write a record piece by piece; times are seconds after the start of the run."""

    def __init__(self, run_dir: Path, task: Task) -> None:
        self.run_dir, self.task = run_dir, task
        self.workspace = run_dir / "workspace"
        self.workspace.mkdir(parents=True)
        self.calls: list[dict[str, Any]] = []
        self.stream: list[tuple[str, dict[str, Any], float]] = []
        self.run_status = "completed"

    # -- writing --

    def write(self, path: str, content: Any, at: float) -> None:
        """A file as text, bytes, or JSON, with its modification time."""
        target = self.workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        os.utime(target, (T0 + at, T0 + at))

    def edit(self, path: str, change: Callable[[Any], Any]) -> None:
        """Change a JSON, YAML or text file in place and keep its time. ``change`` may return a new value."""
        target = self.workspace / path
        at = target.stat().st_mtime - T0
        text = target.read_text()
        if path.endswith(".json"):
            value = json.loads(text)
            value = change(value) or value
            self.write(path, json.dumps(value, indent=1), at)
        elif path.endswith(".yaml"):
            value = yaml.safe_load(text)
            value = change(value) or value
            self.write(path, yaml.safe_dump(value), at)
        else:
            self.write(path, change(text), at)

    def remove(self, path: str) -> None:
        """Delete one file."""
        (self.workspace / path).unlink()

    def touch(self, path: str, at: float) -> None:
        """Set a file's modification time."""
        os.utime(self.workspace / path, (T0 + at, T0 + at))

    def sha256(self, path: str) -> str:
        """Hash of a workspace file as it is now."""
        return hashlib.sha256((self.workspace / path).read_bytes()).hexdigest()

    def call(
        self,
        tool: str,
        step: str | None,
        round_id: int,
        at: float,
        *,
        args: dict[str, Any] | None = None,
        outputs: tuple[str, ...] = (),
        result: dict[str, Any] | None = None,
        status: str | None = "ok",
    ) -> None:
        """One registry call of two seconds; ``status`` None leaves it without an end."""
        self.calls.append(
            {
                "tool": tool,
                "step_id": step,
                "round_id": round_id,
                "at": at,
                "args": args or {},
                "outputs": outputs,
                "result": result or {},
                "status": status,
            }
        )

    def observe(self, function: str, arguments: dict[str, Any], at: float) -> None:
        """One event of the harness's stream."""
        self.stream.append((function, arguments, at))

    def finish(self) -> Path:
        """Write the record around the workspace; returns the run folder."""
        rows: list[dict[str, Any]] = []
        for number, call in enumerate(sorted(self.calls, key=lambda call: call["at"]), start=1):
            common = {"call_id": f"c{number:04d}", "tool": call["tool"]}
            rows.append(
                {"event": "start", "seq": len(rows) + 1, **common}
                | {key: call[key] for key in ("args", "step_id", "round_id")}
                | {"t": iso_time(T0 + call["at"]), "inputs": []}
            )
            if call["status"] is None:
                continue
            rows.append(
                {"event": "end", "seq": len(rows) + 1, **common}
                | {"exit_status": call["status"], "t": iso_time(T0 + call["at"] + 2), "duration_s": 2.0}
                | {
                    "outputs": [
                        {"path": path, "sha256": self.sha256(path)}
                        for path in call["outputs"]
                        if (self.workspace / path).is_file()
                    ],
                    "cache": None,
                    "error": None if call["status"] == "ok" else "failed",
                    "result": call["result"],
                }
            )
        (self.run_dir / "tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        atif = AtifBuilder(session_id="t", agent_name="test", agent_version="1", model=None)
        for function, arguments, at in sorted(self.stream, key=lambda item: item[2]):
            atif.call(function, arguments, "", iso_time(T0 + at))
        (self.run_dir / "trajectory.json").write_text(json.dumps(atif.document()))
        write_manifest(self.workspace, self.run_dir / "manifest.csv", set_times(self.workspace))
        record = {
            "schema": "acp-run/0.1",
            "trajectory_id": f"g/{self.task.task_id}/1",
            "group": "g",
            "task_id": self.task.task_id,
            "replicate": "1",
            "attempt": 1,
            "harness": {"name": "scripted", "version": "1", "policy": "complete"},
            "label_access": "heldout",
            "run_status": self.run_status,
            "status_reason": "test",
            "t_start": iso_time(T0),
            "t_end": iso_time(T0 + END),
            "wall_s": END,
            "sandbox": "unsandboxed",
            "digests": dict.fromkeys(("task", "skills", "tools", "workspace_initial"), "0" * 64),
            "package_version": "0",
            "seed": 1,
        }
        (self.run_dir / "run.json").write_text(json.dumps(record))
        return self.run_dir


def given_files(run: RunBuilder) -> None:
    """What every workspace starts with."""
    run.write("task.json", run.task.model_dump(mode="json"), -10)
    run.write("TASK.md", f"# {run.task.task_id}\n", -10)
    run.write("registry.json", {"tools": [{"id": k, "role": v} for k, v in REGISTRY.items()]}, -10)
    run.write("skills/planning/SKILL.md", "# Planning\n", -10)
    run.write(
        "data/splits.csv",
        table(
            ["patient_id", "split"],
            [[p, s] for s, ps in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)) for p in ps],
        ),
        -10,
    )


def predictions(round_id: int) -> str:
    """Predictions of a round: four validation and two test rows."""
    rows = []
    for name, p in zip([*VALIDATION, *TEST], [*MUTANT[round_id], 0.3, 0.7 + round_id / 100]):
        split = "validation" if name in VALIDATION else "test"
        truth = TRUTH[name] if split == "validation" else ""
        rows.append([name, split, truth, "mutant" if p >= 0.5 else "wildtype", round(1 - p, 3), p])
    return table(["case_id", "split", "y_true", "y_pred", "prob_wildtype", "prob_mutant"], rows)


def metrics(task: Task, round_id: int) -> dict[str, Any]:
    """Metrics document of a round. Secondary values are those of round 0, the only ones recomputed."""
    return {
        "task_id": task.task_id,
        "round_id": round_id,
        "split": "validation",
        "primary_metric": "AUROC",
        "metrics": {
            "AUROC": AUROC[round_id],
            "AUPRC": 0.8333,
            "balanced_accuracy": 0.5,
            "F1": 0.5,
            "brier": 0.2,
            "ECE": 0.4,
        },
        "intervals": {"AUROC": [0.25, 1.0]},
        "n": 4,
        "n_per_class": {"wildtype": 2, "mutant": 2},
        "per_class": {"wildtype": {"recall": 0.5}, "mutant": {"recall": 0.5}},
    }


def config(task: Task, run: RunBuilder, dropout: float, round_id: int) -> str:
    """Resolved configuration of a round."""
    return yaml.safe_dump(
        {
            "task_id": task.task_id,
            "label_column": "label",
            "split_id": f"sha256:{run.sha256('data/splits.csv')[:16]}",
            "encoder": "encoder",
            "mil": {"dropout": dropout, "hidden_dim": 64},
            "seed": 1,
            "round_id": round_id,
        }
    )


def report_text(task: Task) -> str:
    """``reports/report.md`` within the claim boundary."""
    return f"""# Report: {task.target} ({task.task_id})

## Endpoint
{task.target}, a research prediction. {task.claim_boundary_statement}

## Data
Slides of {task.cohort}; the reference label comes from the task's table.

## Method
Tiles, features and an attention-based model.

## Results
AUROC 1.000 on n = 4 validation patients, 95% interval 0.250 to 1.000.

This is not a diagnosis and does not replace the molecular assay.

## Limitations
- The validation set is very small.
- One cohort, so other sites are unknown.
"""


def report_document(task: Task) -> dict[str, Any]:
    """``reports/report.json``."""
    chosen = "reflection/round_1"
    return {
        "schema": "acp-report/0.1",
        "task_id": task.task_id,
        "endpoint": task.target,
        "output_type": task.output_type,
        "classes": task.classes,
        "claim_boundary_type": task.claim_boundary_type,
        "round_selected": 1,
        "headline": {
            "metric": "AUROC",
            "value": 1.0,
            "interval": [0.25, 1.0],
            "split": "validation",
            "n": 4,
            "file": f"{chosen}/metrics.json",
        },
        "claims": [
            {"text": "AUROC 1.000 on validation.", "evidence": [f"{chosen}/metrics.json#/metrics/AUROC"]}
        ],
        "artifacts": [f"{chosen}/predictions.csv", "outputs/round_0/slide_manifest.csv"],
        "missing_evidence": [],
        "limitations": ["small", "one cohort"],
        "test_receipt": None,
    }


def plan_files(run: RunBuilder) -> None:
    """``plan/``."""
    task = run.task
    run.write(
        "plan/plan.md",
        f"# Plan\nPredict {task.target} in {task.organ} slides.\nReference label: {task.label_source}.\n",
        20,
    )
    run.write(
        "plan/workflow_spec.json",
        {
            "schema": "acp-workflow-spec/0.1",
            "intent": {
                "task_id": task.task_id,
                "endpoint": task.target,
                "output_type": task.output_type,
                "claim_boundary_type": task.claim_boundary_type,
                "unit_of_prediction": "patient",
            },
            "steps": [
                {"id": i, "tool": tool, "role": REGISTRY[tool], "params": {}, "inputs": ins, "outputs": outs}
                for i, tool, ins, outs in SPEC_STEPS
            ],
            "params": {"mpp": 0.5, "tile_px": 224},
            "split": {"source": "data/splits.csv", "unit": "patient"},
            "evaluation": {"primary_metric": "AUROC"},
            "expected_artifacts": {
                "predictions": "outputs/round_0/predictions.csv",
                "metrics": "outputs/round_0/metrics.json",
                "report": "reports/report.md",
            },
            "round_id": 0,
            "seed": 1,
        },
        30,
    )


def round_files(run: RunBuilder, round_id: int, at: float) -> None:
    """Training and evaluation of a round, from 10 to 40 seconds after ``at``."""
    folder, dropout = ROUND_FOLDERS[round_id], [0.25, 0.5, 0.1][round_id]
    run.write(f"{folder}/config.yaml", config(run.task, run, dropout, round_id), at + 10)
    run.write(f"{folder}/model.pt", b"\x80model", at + 11)
    run.write(f"{folder}/predictions.csv", predictions(round_id), at + 12)
    run.write(f"{folder}/metrics.json", metrics(run.task, round_id), at + 32)
    run.call(
        "train_mil",
        "s4",
        round_id,
        at + 10,
        args={"dropout": dropout},
        result={"config_sha256": run.sha256(f"{folder}/config.yaml")},
    )
    run.call("read_table", "s5", round_id, at + 20, args={"path": f"{folder}/predictions.csv"})
    run.call("evaluate_predictions", "s5", round_id, at + 30)


def reflection_files(run: RunBuilder, round_id: int, at: float) -> None:
    """One reflection round: critique, update, rerun, comparison. Round 2 starts from round 1."""
    folder, before = ROUND_FOLDERS[round_id], ROUND_FOLDERS[round_id - 1]
    old, new = [0.25, 0.5, 0.1][round_id - 1 : round_id + 1]
    delta = AUROC[round_id] - AUROC[round_id - 1]
    run.write(
        f"{folder}/critique.json",
        {
            "weakest_link": {
                "step": "s4",
                "stage": "action",
                "description": "little regularisation",
                "evidence": [f"{before}/metrics.json#/metrics/AUROC", "logs/run.log#L1"],
            },
            "metrics": {"AUROC": AUROC[round_id - 1]},
        },
        at + 2,
    )
    run.write(
        f"{folder}/update.json",
        {
            "step": "s4",
            "parameter": "mil.dropout",
            "old": old,
            "new": new,
            "expected_effect": "less overfitting",
        },
        at + 4,
    )
    round_files(run, round_id, at)
    run.write(f"{folder}/config_diff.json", {"changed": {"mil.dropout": {"old": old, "new": new}}}, at + 40)
    run.write(
        f"{folder}/summary.json",
        {
            "round_id": round_id,
            "metric": "AUROC",
            "split": "validation",
            "n": 4,
            "previous": AUROC[round_id - 1],
            "current": AUROC[round_id],
            "delta": delta,
            "verdict": "improved" if delta > 0 else "worse",
            "decision": "keep" if delta > 0 else "revert",
            "statement": "compared with the round before",
        },
        at + 42,
    )


def good_run(run_dir: Path, task: Task) -> RunBuilder:
    """A complete run with two rounds, not yet finished: mutate it, then call ``finish``."""
    run = RunBuilder(run_dir, task)
    given_files(run)
    run.observe("read_file", {"path": "TASK.md"}, 1)
    run.observe("read_file", {"path": "skills/planning/SKILL.md"}, 2)
    plan_files(run)
    base = ROUND_FOLDERS[0]
    run.write(
        f"{base}/slide_manifest.csv",
        table(
            ["slide_id", "patient_id", "status"], [[f"{p}-S", p, "ok"] for p in (*TRAIN, *VALIDATION, *TEST)]
        ),
        52,
    )
    run.write(f"{base}/tiles_index.csv", table(["slide_id"], [["V1-S"]]), 62)
    run.write(
        f"{base}/features_index.csv",
        table(["slide_id", "encoder", "path"], [["V1-S", "encoder", "store:abc"]]),
        72,
    )
    run.write(f"{base}/splits.csv", (run.workspace / "data/splits.csv").read_text(), 90)
    run.call("inspect_slides", "s1", 0, 50)
    run.call("tile_slides", "s2", 0, 60)
    run.call("extract_features", "s3", 0, 70, outputs=(f"{base}/features_index.csv",))
    run.write("logs/run.log", "all steps ran\n", 130)
    round_files(run, 0, 80)
    reflection_files(run, 1, 200)
    reflection_files(run, 2, 300)
    run.write(
        "reflection/summary.json",
        {
            "rounds": [
                {"round_id": 0, "changed_step": None, "metric": "AUROC", "value": 0.75, "delta": None},
                {"round_id": 1, "changed_step": "s4", "metric": "AUROC", "value": 1.0, "delta": 0.25},
                {"round_id": 2, "changed_step": "s4", "metric": "AUROC", "value": 0.5, "delta": -0.5},
            ],
            "selected_round": 1,
            "stop_reason": "both changes were tried",
        },
        400,
    )
    run.write(
        "memory/execution_memory.jsonl",
        json.dumps({"kind": "success", "round_id": 1, "step_id": "s4", "text": "more dropout helped"}) + "\n",
        410,
    )
    run.write("scripts/run.sh", "#!/bin/sh\n", 420)
    run.write("reports/report.md", report_text(task), 500)
    run.write("reports/report.json", report_document(task), 510)
    run.call("validate_report", "s6", 1, 520)
    return run

"""A small complete record built by hand: 24 patients of the demo pleomorphism task, one reflection round.

Patients ``p01``-``p08`` train, ``p09``-``p16`` validation, ``p17``-``p24`` test; odd is low, even is high.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from acpbench.core.files import sha256_file, write_csv, write_json, write_jsonl
from acpbench.trajectory.record import iso_time, write_manifest
from tests.times import set_times

START = 1_700_000_000.0
END = START + 3600
TASK_ID = "demo_pleomorphism"
BOUNDARY = "tissue_phenotype_classification"
PATIENTS = [f"p{number:02d}" for number in range(1, 25)]


def split_of(patient: str) -> str:
    number = int(patient[1:])
    return "train" if number <= 8 else "validation" if number <= 16 else "test"


def label_of(patient: str) -> str:
    return "low" if int(patient[1:]) % 2 else "high"


def label_rows() -> list[dict[str, Any]]:
    folds = {"test": 0, "validation": 1, "train": 2}
    return [
        {
            "slide_id": f"s{patient[1:]}",
            "patient_id": patient,
            "fold": folds[split_of(patient)],
            "split": split_of(patient),
            "label": label_of(patient),
            "time": "",
            "event": "",
        }
        for patient in PATIENTS
    ]


def prediction_rows(
    wrong: tuple[str, ...] = ("p09", "p24"), splits: tuple[str, ...] = ("validation", "test")
) -> list[dict]:
    """Confident, right predictions but for ``wrong`` ones; labels given for validation only."""
    rows = []
    for patient in PATIENTS:
        if split_of(patient) not in splits:
            continue
        called = label_of(patient)
        if patient in wrong:
            called = "high" if called == "low" else "low"
        high = 0.9 if called == "high" else 0.1
        rows.append(
            {
                "case_id": patient,
                "split": split_of(patient),
                "y_true": "" if split_of(patient) == "test" else label_of(patient),
                "y_pred": called,
                "prob_low": round(1 - high, 3),
                "prob_high": high,
            }
        )
    return rows


PREDICTION_COLUMNS = ["case_id", "split", "y_true", "y_pred", "prob_low", "prob_high"]
# Eight validation patients, one wrong: accuracy 7/8. One low called high at 0.9 ties with the four highs:
# of 16 pairs, 12 are ordered rightly and 4 tied, AUROC 14/16.
VALIDATION = {"AUROC": 0.875, "accuracy": 0.875, "balanced_accuracy": 0.875}
REPORT = """# Report: nuclear pleomorphism

## Endpoint
Nuclear pleomorphism (high vs low). Claim boundary: tissue_phenotype_classification.
The result is a research prediction. It is not a diagnosis.

## Results
The model was trained and evaluated on 8 validation patients. AUROC 0.875 on n = 8 validation patients.
On 8 test patients the evaluator reports AUROC 0.875 (receipt r-1).
"""


class Record:
    """Writes a record; change ``files`` (workspace path → text, bytes or JSON value) before :meth:`write`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.run_status = "completed"
        self.label_access = "heldout"
        self.files: dict[str, Any] = {}
        self.tables: dict[str, tuple[list[str], list[dict]]] = {}
        self.tool_outputs: list[tuple[str, int, list[str], dict]] = []
        self.mtimes: dict[str, float] = {}
        self.typed: list[str] = []
        self.labels = label_rows()

    def complete(self) -> Record:
        """A diligent run: everything is there and witnessed."""
        self.files["plan/workflow_spec.json"] = {
            "intent": {
                "task_id": TASK_ID,
                "endpoint": "nuclear pleomorphism (high vs low)",
                "output_type": "binary",
                "claim_boundary_type": BOUNDARY,
            },
            "steps": [{"id": "s1", "tool": "tile_slides", "role": "slide_processing"}],
            "evaluation": {"primary_metric": "AUROC"},
        }
        self.files["reports/report.md"] = REPORT
        self.files["reports/report.json"] = {
            "task_id": TASK_ID,
            "endpoint": "nuclear pleomorphism (high vs low)",
            "output_type": "binary",
            "classes": ["low", "high"],
            "claim_boundary_type": BOUNDARY,
            "round_selected": 0,
            "headline": {
                "metric": "AUROC",
                "value": 0.875,
                "split": "validation",
                "n": 8,
                "file": "outputs/round_0/metrics.json",
            },
            "claims": [{"text": "AUROC 0.875 on 8 validation patients.", "evidence": []}],
            "artifacts": ["outputs/round_0/predictions.csv", "outputs/round_0/metrics.json"],
            "test_receipt": {"receipt_id": "r-1"},
        }
        for number, folder in ((0, "outputs/round_0"), (1, "reflection/round_1")):
            self.tables[f"{folder}/predictions.csv"] = (PREDICTION_COLUMNS, prediction_rows())
            self.files[f"{folder}/metrics.json"] = {
                "task_id": TASK_ID,
                "round_id": number,
                "split": "validation",
                "primary_metric": "AUROC",
                "metrics": dict(VALIDATION),
                "n": 8,
            }
            self.files[f"{folder}/config.yaml"] = (
                f"task_id: {TASK_ID}\nround_id: {number}\nmil:\n  dropout: 0.{number + 1}\n"
            )
            self.files[f"{folder}/model.pt"] = f"weights {number}"
            self.tool_outputs.append(
                ("train_mil", number, [f"{folder}/model.pt", f"{folder}/predictions.csv"], {})
            )
            self.tool_outputs.append(
                (
                    "evaluate_predictions",
                    number,
                    [f"{folder}/metrics.json"],
                    {"metrics": dict(VALIDATION), "n": 8},
                )
            )
        self.files["outputs/round_0/features_index.csv"] = "slide_id,encoder\ns01,demo\n"
        self.files["reflection/round_1/critique.json"] = {
            "weakest_link": {"step": "s4"},
            "endpoint_unchanged": True,
            "claim_boundary_type": BOUNDARY,
        }
        self.files["reflection/round_1/update.json"] = {"step": "s4", "parameter": "mil.dropout"}
        self.files["reflection/round_1/config_diff.json"] = {
            "changed": {"mil.dropout": {"old": 0.1, "new": 0.2}}
        }
        self.files["reflection/round_1/summary.json"] = {
            "round_id": 1,
            "metric": "AUROC",
            "split": "validation",
        }
        self.tool_outputs = [
            ("tile_slides", 0, [], {}),
            ("extract_features", 0, ["outputs/round_0/features_index.csv"], {}),
            *self.tool_outputs,
            ("evaluate_test", 0, [], {"receipt_id": "r-1", "split": "test", "metrics": {"AUROC": 0.875}}),
        ]
        return self

    def write(self) -> Path:
        """Write everything; returns the record's folder."""
        workspace = self.run_dir / "workspace"
        workspace.mkdir(parents=True)
        for path, value in self.files.items():
            target = workspace / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(value, bytes):
                target.write_bytes(value)
            elif isinstance(value, str):
                target.write_text(value, encoding="utf-8")
            else:
                target.write_text(json.dumps(value), encoding="utf-8")
        for path, (columns, rows) in self.tables.items():
            write_csv(workspace / path, columns, rows)
        for path in workspace.rglob("*"):
            if path.is_file():
                when = self.mtimes.get(path.relative_to(workspace).as_posix(), START + 600)
                os.utime(path, (when, when))
        write_manifest(workspace, self.run_dir / "manifest.csv", set_times(workspace))
        self._write_logs(workspace)
        write_json(self.run_dir / "run.json", self._run_json())
        columns = ["slide_id", "patient_id", "fold", "split", "label", "time", "event"]
        write_csv(self.folder / "labels.csv", columns, self.labels)
        write_jsonl(self.folder / "adjudicated.jsonl", adjudicated_rows())
        return self.run_dir

    def _write_logs(self, workspace: Path) -> None:
        log = []
        for number, (tool, round_id, outputs, result) in enumerate(self.tool_outputs, start=1):
            call = f"c{number:04d}"
            when = iso_time(START + 60 * number)
            log.append(
                {"event": "start", "seq": len(log), "call_id": call, "tool": tool, "args": {},
                 "step_id": "s1", "round_id": round_id, "t": when, "inputs": []}
            )  # fmt: skip
            written = [
                {"path": path, "sha256": sha256_file(workspace / path), "size": 1}
                for path in outputs
                if (workspace / path).is_file()
            ]
            log.append(
                {"event": "end", "seq": len(log), "call_id": call, "tool": tool, "exit_status": "ok",
                 "t": when, "duration_s": 1, "outputs": written, "cache": None, "error": None,
                 "result": result}
            )  # fmt: skip
        write_jsonl(self.run_dir / "tools.jsonl", log)
        steps = [
            {
                "timestamp": iso_time(START + 30),
                "tool_calls": [{"function_name": "write_file", "arguments": {"path": path}}],
            }
            for path in self.typed
        ]
        write_json(self.run_dir / "trajectory.json", {"steps": steps})

    def _run_json(self) -> dict[str, Any]:
        return {
            "schema": "acp-run/0.1",
            "trajectory_id": f"g1/{TASK_ID}/1",
            "group": "g1",
            "task_id": TASK_ID,
            "replicate": "1",
            "attempt": 1,
            "harness": {"name": "scripted", "version": "0.1"},
            "label_access": self.label_access,
            "run_status": self.run_status,
            "status_reason": "",
            "t_start": iso_time(START),
            "t_end": iso_time(END),
            "wall_s": 3600,
            "sandbox": "none",
            "digests": dict.fromkeys(("task", "skills", "tools", "workspace_initial"), "0" * 64),
            "package_version": "0.1.0",
            "seed": 1,
        }


def adjudicated_rows() -> list[dict[str, Any]]:
    """One PASS row a stage."""
    stages = {"planning": "P1", "action": "A1", "diagnosis": "D1", "reflection": "R1"}
    return [
        {
            "trajectory": f"g1/{TASK_ID}/1",
            "item_id": f"{sub}.d1",
            "checkpoint": f"{sub}.d1",
            "stage": stage,
            "subcapability": sub,
            "kind": "deterministic",
            "round": None,
            "critical": False,
            "weight": 1,
            "first_pass_status": "PASS",
            "first_pass_grade_status": "scored",
            "audit_status": None,
            "final_status": "PASS",
            "decided_by": "check",
            "why": "",
            "evidence_refs": [],
        }
        for stage, sub in stages.items()
    ]

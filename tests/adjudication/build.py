# ruff: noqa: E501  (an agent's texts, kept as an agent would write them)
"""A diligent run's record, written by hand: 4 training, 8 validation, 4 test patients, two rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from acpbench.core.files import sha256_bytes, sha256_file, write_csv, write_json, write_jsonl, write_text
from acpbench.mil.metrics import score_predictions
from acpbench.tasks.models import Task
from acpbench.trajectory.record import iso_time, write_manifest
from tests.times import set_times

T0 = 1_760_000_000.0
GIVEN = ("data/", "schemas/", "skills/", "task.json", "TASK.md", "registry.json")
"""What lies in a workspace before the run begins."""
CLASSES = ["low", "high"]
TRAIN = [f"P{n:02d}" for n in range(1, 5)]
VALIDATION = [f"P{n:02d}" for n in range(5, 13)]
TEST = [f"P{n:02d}" for n in range(13, 17)]
SPLIT = dict.fromkeys(TRAIN, "train") | dict.fromkeys(VALIDATION, "validation") | dict.fromkeys(TEST, "test")
LABEL = {p: CLASSES[index % 2] for index, p in enumerate(SPLIT)}
# Probability of "high" per round: validation P05 (low), P06 (high), ... in turn.
ROUND_PROBABILITIES = {
    0: [0.30, 0.60, 0.55, 0.50, 0.20, 0.70, 0.65, 0.40],
    1: [0.30, 0.60, 0.35, 0.52, 0.20, 0.70, 0.65, 0.45],
    2: [0.60, 0.30, 0.55, 0.35, 0.52, 0.20, 0.70, 0.65],
}

PLAN = """# Plan

## Goal
Predict nuclear pleomorphism from H&E slides. The classes are low and high.
The unit of prediction is the patient; slides are pooled to patients through `data/slide_manifest.csv`, all slides in one bag.

## Claim boundary
May claim: on these synthetic slides, images carry signal for the nuclear pleomorphism setting, quantified by AUROC on held-out
patients. May not claim anything about real tissue or clinical use. This is research, not a diagnosis.

## Tissue
The synthetic sections imitate tissue stained with H&E. The signal may sit in the nuclei: their size and variation.
Confounders such as stain, scanner, site and necrosis may act as a shortcut.
They are handled: stain differences are checked and unusable slides are excluded.

## Label
The reference label is the generator's nuclear pleomorphism setting of each patient; label error is possible at class limits.

## Tools
The encoder demo_encoder is used because it runs offline. Aggregator: attention rather than mean pooling, because nuclei of
interest may fill few tiles. The model head is a binary cross-entropy head.
Compute: one CPU core and little memory, therefore a small model; only 16 patients, so nothing large can be fitted.

## Configuration
At 0.5 um per pixel (20x) and tiles of 224 px, nuclei are resolved and a gland fits.

## Split
The split is patient-disjoint. Test patients are never used for selection.

## Done
Finished work means predictions.csv, metrics.json with AUROC, and a report.

## Stop rules
Stop after at most five rounds or without improvement. A round may change one setting of the model.
"""


def predictions(round_id: int) -> list[dict[str, Any]]:
    rows = []
    for patient, high in zip(VALIDATION, ROUND_PROBABILITIES[round_id], strict=True):
        rows.append(_prediction(patient, high, LABEL[patient]))
    return rows + [_prediction(patient, 0.4 + 0.05 * round_id, "") for patient in TEST]


def _prediction(patient: str, high: float, truth: str) -> dict[str, Any]:
    return {
        "case_id": patient,
        "split": SPLIT[patient],
        "y_true": truth,
        "y_pred": "high" if high >= 0.5 else "low",
        "prob_low": round(1 - high, 6),
        "prob_high": high,
    }


def metrics(round_id: int, config_sha256: str) -> dict[str, Any]:
    rows = [
        row | {"patient_id": row["case_id"]} for row in predictions(round_id) if row["split"] == "validation"
    ]
    scored = score_predictions("binary", CLASSES, rows)
    value = scored["metrics"]["AUROC"]
    return {
        "task_id": "demo_pleomorphism",
        "round_id": round_id,
        "split": "validation",
        "primary_metric": "AUROC",
        "metrics": scored["metrics"],
        "intervals": {"AUROC": [max(0.0, value - 0.25), min(1.0, value + 0.2)]},
        "notes": {},
        "n": scored["n"],
        "n_per_class": scored["n_per_class"],
        "n_events": None,
        "per_class": scored["per_class"],
        "config_sha256": config_sha256,
    }


def auroc(round_id: int) -> float:
    return metrics(round_id, "")["metrics"]["AUROC"]


class Record:
    """Writes a record piece by piece, each file and call at its own second; ``close`` makes it complete."""

    def __init__(self, root: Path, task: Task) -> None:
        self.run_dir, self.task = root, task
        self.workspace = root / "workspace"
        self.clock = T0 + 1
        self.tool_rows: list[dict[str, Any]] = []
        self.stream: list[dict[str, Any]] = []
        self.mtimes: dict[str, float] = {}
        self.given()

    def tick(self) -> float:
        self.clock += 1.0
        return self.clock

    def put(self, path: str, content: Any, *, columns: list[str] | None = None) -> Path:
        target = self.workspace / path
        if columns is not None:
            write_csv(target, columns, content)
        elif isinstance(content, str):
            write_text(target, content)
        else:
            write_json(target, content)
        self.mtimes[path] = T0 - 10 if path.startswith(GIVEN) else self.tick()
        return target

    def write(self, path: str, content: Any) -> None:
        """A file the agent writes, seen on the stream."""
        self.put(path, content)
        self.step("write_file", path)

    def read(self, path: str) -> None:
        self.step("read_file", path)

    def step(self, function: str, path: str) -> None:
        self.stream.append(
            {
                "step_id": len(self.stream) + 1,
                "timestamp": iso_time(self.tick()),
                "source": "agent",
                "message": "",
                "tool_calls": [{"tool_call_id": "x", "function_name": function, "arguments": {"path": path}}],
            }
        )

    def call(
        self,
        tool: str,
        args: dict[str, Any],
        *,
        step: str,
        round_id: int = 0,
        outputs: tuple[str, ...] = (),
        result: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        call_id = f"c{len(self.tool_rows) + 1:04d}"
        self.tool_rows.append(
            {"event": "start", "seq": len(self.tool_rows) + 1, "call_id": call_id, "tool": tool, "args": args,
             "step_id": step, "round_id": round_id, "t": iso_time(self.tick()), "inputs": []}
        )  # fmt: skip
        self.tool_rows.append(
            {"event": "end", "seq": len(self.tool_rows) + 1, "call_id": call_id, "tool": tool,
             "exit_status": "error" if error else "ok", "t": iso_time(self.tick()), "duration_s": 1.0,
             "outputs": [{"path": p, "sha256": sha256_file(self.workspace / p), "size": 1} for p in outputs],
             "cache": None, "error": error, "result": result or {}}
        )  # fmt: skip

    # ---- parts of a run ----------------------------------------------------------------------------
    def given(self) -> None:
        roles = {
            "inspect_slides": "slide_processing", "tile_slides": "slide_processing",
            "extract_features": "feature_extraction", "train_mil": "model",
            "evaluate_predictions": "evaluation", "evaluate_test": "evaluation", "read_table": "verification",
        }  # fmt: skip
        names = ["spacing_um", "tile_size_px", "encoder", "features_index", "output_dir", "dropout", "seed", "path",
                 "predictions", "output", "round_id"]  # fmt: skip
        schema = {"properties": {name: {} for name in names}, "required": []}
        self.put("task.json", self.task.model_dump(mode="json"))
        self.put("TASK.md", "# Task\n")
        self.put(
            "registry.json",
            {"tools": [{"id": name, "role": role, "args_schema": schema} for name, role in roles.items()]},
        )
        self.put("skills/pathology/SKILL.md", "Use the tools in order.\n")
        rows = [
            {"slide_id": f"S{p[1:]}", "patient_id": p, "split": s, "label": "" if s == "test" else LABEL[p]}
            for p, s in SPLIT.items()
        ]
        self.put("data/slide_manifest.csv", rows, columns=["slide_id", "patient_id", "split", "label"])
        self.put(
            "data/splits.csv",
            [{"patient_id": p, "split": s} for p, s in SPLIT.items()],
            columns=["patient_id", "split"],
        )

    def plan(self) -> None:
        self.read("registry.json")
        self.read("skills/pathology/SKILL.md")
        self.write("plan/plan.md", PLAN)
        base = "outputs/round_0"
        steps = [
            ("s1", "inspect_slides", "slide_processing", {"output_dir": base}, ["data/slide_manifest.csv"], ["slide_manifest.csv"]),
            ("s2", "tile_slides", "slide_processing", {"spacing_um": 0.5, "tile_size_px": 224}, ["slide_manifest.csv"], ["tiles_index.csv"]),
            ("s3", "extract_features", "feature_extraction", {"encoder": "demo_encoder"}, ["tiles_index.csv"], ["features_index.csv"]),
            ("s4", "train_mil", "model", {"dropout": 0.25}, ["features_index.csv", "data/splits.csv"], ["predictions.csv", "model.pt"]),
            ("s5", "evaluate_predictions", "evaluation", {"output": f"{base}/metrics.json"}, ["predictions.csv"], ["metrics.json"]),
        ]  # fmt: skip

        def full(path: str) -> str:
            return path if "/" in path else f"{base}/{path}"

        self.write(
            "plan/workflow_spec.json",
            {
                "schema": "acp-workflow-spec/0.1",
                "intent": {
                    "task_id": self.task.task_id,
                    "endpoint": "nuclear pleomorphism",
                    "output_type": "binary",
                    "claim_boundary_type": self.task.claim_boundary_type,
                    "unit_of_prediction": "patient",
                },
                "steps": [
                    {"id": i, "tool": t, "role": r, "params": p, "inputs": list(map(full, a)), "outputs": list(map(full, b))}
                    for i, t, r, p, a, b in steps
                ],
                "params": {"mpp": 0.5, "tile_px": 224, "encoder": "demo_encoder"},
                "split": {"source": "data/splits.csv", "unit": "patient", "test_use": "once, at the end"},
                "evaluation": {"primary_metric": "AUROC", "secondary": ["AUPRC"], "uncertainty": "patient bootstrap"},
                "expected_artifacts": {},
                "round_id": 0,
                "seed": 3,
            },
        )  # fmt: skip

    def prepare(self) -> None:
        base = "outputs/round_0"
        rows = [
            {"slide_id": f"S{p[1:]}", "patient_id": p, "split": s, "status": "ok", "n_tiles": 9, "reason": ""}
            for p, s in SPLIT.items()
        ]
        self.put(f"{base}/slide_manifest.csv", rows, columns=list(rows[0]))
        features = [
            {
                "slide_id": f"S{p[1:]}",
                "encoder": "demo_encoder",
                "path": "store:k",
                "sha256": "ab",
                "n_tiles": 9,
            }
            for p in SPLIT
        ]
        self.put(f"{base}/features_index.csv", features, columns=list(features[0]))
        self.put(f"{base}/tiles_index.csv", features, columns=["slide_id", "n_tiles"])
        self.call("inspect_slides", {"output_dir": base}, step="s1", outputs=(f"{base}/slide_manifest.csv",))
        grid = {"spacing_um": 0.5, "tile_size_px": 224}
        self.call("tile_slides", grid, step="s2", outputs=(f"{base}/tiles_index.csv",))
        self.call(
            "extract_features",
            grid | {"encoder": "demo_encoder"},
            step="s3",
            outputs=(f"{base}/features_index.csv",),
        )
        self.call("read_table", {"path": f"{base}/slide_manifest.csv"}, step="s3")

    def fit(self, round_id: int, dropout: float) -> None:
        folder = "outputs/round_0" if round_id == 0 else f"reflection/round_{round_id}"
        config = yaml.safe_dump(
            {"task_id": self.task.task_id, "label_column": "label", "split_id": "data/splits.csv", "encoder": "demo_encoder",
             "spacing_um": 0.5, "tile_size_px": 224, "mil": {"dropout": dropout}, "seed": 3, "round_id": round_id}
        )  # fmt: skip
        digest = sha256_bytes(config.encode())
        self.put(f"{folder}/config.yaml", config)
        self.put(f"{folder}/model.pt", f"weights {round_id}")
        self.put(
            f"{folder}/splits.csv",
            [{"patient_id": p, "split": s} for p, s in SPLIT.items()],
            columns=["patient_id", "split"],
        )
        rows = predictions(round_id)
        self.put(f"{folder}/predictions.csv", rows, columns=list(rows[0]))
        self.call(
            "train_mil",
            {
                "features_index": "outputs/round_0/features_index.csv",
                "output_dir": folder,
                "dropout": dropout,
                "seed": 3,
            },
            step="s4",
            round_id=round_id,
            outputs=(f"{folder}/predictions.csv", f"{folder}/config.yaml"),
            result={"config_sha256": digest},
        )
        self.call("read_table", {"path": f"{folder}/predictions.csv"}, step="s5", round_id=round_id)
        self.put(f"{folder}/metrics.json", metrics(round_id, digest))
        self.call(
            "evaluate_predictions",
            {
                "predictions": f"{folder}/predictions.csv",
                "output": f"{folder}/metrics.json",
                "round_id": round_id,
            },
            step="s5",
            round_id=round_id,
            outputs=(f"{folder}/metrics.json",),
        )
        self.read(f"{folder}/metrics.json")
        self.write(
            f"logs/round_{round_id}.log",
            f"round {round_id} config {digest}\ncheck: predictions.csv has 12 rows, no missing values, range 0.2 to 0.7\n"
            "check: no patient is in two splits; labels were joined by patient id\nno errors\n",
        )

    def reflect(self, round_id: int, old: float, new: float, *, decision: str) -> None:
        folder = f"reflection/round_{round_id}"
        previous = "outputs/round_0" if round_id == 1 else f"reflection/round_{round_id - 1}"
        before, after = auroc(round_id - 1), auroc(round_id)
        self.write(
            f"{folder}/critique.json",
            {
                "weakest_link": {
                    "step": "s4",
                    "stage": "action",
                    "description": f"Dropout of {old} may let the model overfit; AUROC was {before:.3f} in round {round_id - 1}.",
                    "evidence": [
                        f"{previous}/metrics.json#/metrics/AUROC",
                        f"logs/round_{round_id - 1}.log#L2",
                    ],
                },
                "metrics": {"AUROC": before},
                "alternatives": ["The validation set is small, so the difference may be chance."],
                "data_and_label_considerations": "Label error at class limits and eight validation patients limit the data.",
                "endpoint_unchanged": True,
                "claim_boundary_type": self.task.claim_boundary_type,
            },
        )
        self.write(
            f"{folder}/update.json",
            {
                "step": "s4",
                "parameter": "mil.dropout",
                "old": old,
                "new": new,
                "expected_effect": "Less overfit, so AUROC should rise a little.",
                "measure": "AUROC on the same validation patients",
            },
        )
        self.fit(round_id, new)
        self.write(f"{folder}/config_diff.json", {"changed": {"mil.dropout": {"old": old, "new": new}}})
        delta = after - before
        self.write(
            f"{folder}/summary.json",
            {
                "round_id": round_id,
                "metric": "AUROC",
                "split": "validation",
                "n": 8,
                "previous": before,
                "current": after,
                "delta": delta,
                "verdict": "improved" if delta > 1e-3 else "worse" if delta < -1e-3 else "unchanged",
                "decision": decision,
                "statement": "Compared on the same validation patients of this cohort. Side effects: other metrics were read too.",
            },
        )

    def finish(self, selected: int, rounds: list[int]) -> None:
        self.write(
            "reflection/summary.json",
            {
                "rounds": [
                    {"round_id": k, "changed_step": "s4", "metric": "AUROC", "value": auroc(k)}
                    for k in rounds
                ],
                "selected_round": selected,
                "stop_reason": "Both planned changes were tried.",
            },
        )
        lines = [
            {
                "kind": "success",
                "round_id": k,
                "step_id": "s4",
                "text": f"dropout changed in round {k}: AUROC -> {auroc(k):.3f}",
            }
            for k in rounds
        ]
        self.write("memory/execution_memory.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self.write("scripts/run.sh", "acp-bench tool call train_mil\n")

    def report(self, selected: int, rounds: list[int]) -> None:
        folder = "outputs/round_0" if selected == 0 else f"reflection/round_{selected}"
        document = metrics(selected, "")
        value, (low, high) = document["metrics"]["AUROC"], document["intervals"]["AUROC"]
        self.write("reports/report.md", report_text(folder, document, rounds))
        self.write(
            "reports/report.json",
            {
                "schema": "acp-report/0.1",
                "task_id": self.task.task_id,
                "endpoint": self.task.target,
                "output_type": "binary",
                "classes": CLASSES,
                "claim_boundary_type": self.task.claim_boundary_type,
                "round_selected": selected,
                "headline": {
                    "metric": "AUROC",
                    "value": value,
                    "interval": [low, high],
                    "split": "validation",
                    "n": 8,
                    "file": f"{folder}/metrics.json",
                },
                "claims": [],
                "artifacts": [f"{folder}/metrics.json", f"{folder}/predictions.csv"],
                "missing_evidence": [],
                "limitations": [],
                "test_receipt": None,
            },
        )

    def close(self, run_status: str = "completed") -> Path:
        import os

        for path in self.mtimes:
            os.utime(self.workspace / path, (self.mtimes[path], self.mtimes[path]))
        write_manifest(self.workspace, self.run_dir / "manifest.csv", set_times(self.workspace))
        write_jsonl(self.run_dir / "tools.jsonl", self.tool_rows)
        write_json(self.run_dir / "trajectory.json", {"schema_version": "ATIF-v1.4", "steps": self.stream})
        write_json(
            self.run_dir / "run.json",
            {
                "schema": "acp-run/0.1", "trajectory_id": f"g/{self.task.task_id}/1", "group": "g",
                "task_id": self.task.task_id, "replicate": "1", "attempt": 1,
                "harness": {"name": "hand", "version": "1", "policy": None}, "model": None, "label_access": "heldout",
                "run_status": run_status, "status_reason": "", "exit_code": 0, "signal": None,
                "t_start": iso_time(T0), "t_end": iso_time(self.clock + 5), "wall_s": self.clock + 5 - T0, "tokens": None,
                "cost_usd": None, "cost_source": None, "limits": {}, "sandbox": "none",
                "digests": {"task": "0", "skills": "0", "tools": "0", "workspace_initial": "0"},
                "package_version": "0", "seed": 3,
            },
        )  # fmt: skip
        return self.run_dir


def report_text(folder: str, document: dict[str, Any], rounds: list[int]) -> str:
    value, (low, high) = document["metrics"]["AUROC"], document["intervals"]["AUROC"]
    per_class = "\n".join(
        f"- {name}: recall {row['recall']:.3f}, n {row['n']}" for name, row in document["per_class"].items()
    )
    listed = "\n".join(f"- round {k}: AUROC {auroc(k):.3f}" for k in rounds)
    return f"""# Report

## Endpoint
Nuclear pleomorphism on the demo cohort. This is a research prediction on these synthetic slides, not a diagnosis; it may not
be used for clinical care of patients and does not claim anything about real tissue.

## Data
16 slides of 16 patients; none was dropped.

## Method
Slides were tiled (9 tiles each), embedded and pooled by attention. No external cohort was evaluated.

## Results
Nuclear pleomorphism, demo cohort, attention model: AUROC {value:.3f} on n = 8 validation patients, interval {low:.3f} to {high:.3f}
(`{folder}/metrics.json`). Chance level of AUROC is 0.5. The interval is wide and the set is small.
- AUPRC {document["metrics"]["AUPRC"]:.3f}, balanced accuracy {document["metrics"]["balanced_accuracy"]:.3f}

Per class:
{per_class}

Rounds:
- round 0: AUROC {auroc(0):.3f}
{listed}

A round that was worse was not kept.

## Limitations
- Small set: 8 validation patients, so intervals are wide.
- Reference labels may hold error.
- One cohort, synthetic; other sites and scanners are unknown.
- An external test is missing.
"""


def diligent(root: Path, task: Task) -> Record:
    """Plan, run, verify, two rounds (the first improves, the second is worse), report."""
    record = Record(root, task)
    record.plan()
    record.prepare()
    record.fit(0, 0.25)
    record.reflect(1, 0.25, 0.5, decision="keep")
    record.reflect(2, 0.5, 0.75, decision="stop")
    record.finish(1, [1, 2])
    record.report(1, [1, 2])
    return record


def label_rows() -> list[dict[str, str]]:
    """The evaluator's label table."""
    fold = {"test": "0", "validation": "1", "train": "2"}
    return [
        {
            "slide_id": f"S{p[1:]}",
            "patient_id": p,
            "fold": fold[s],
            "split": s,
            "label": LABEL[p],
            "time": "",
            "event": "",
        }
        for p, s in SPLIT.items()
    ]

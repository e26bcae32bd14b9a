"""The whole workflow on a slice of a real cohort: real tissue, a real task definition, one agent run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from acpbench.core.files import read_csv, write_csv

N_PATIENTS_PER_CLASS = 8


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, shared_data: Path, repository: Path) -> Path:
    """A finished study on 16 lung slides, one a patient."""
    cohort = shared_data / "cohorts" / "lung_composite"
    if not cohort.is_dir():
        pytest.skip("the lung cohort is not among the shared data")
    chosen: dict[str, dict[str, str]] = {}
    counts = {"LUAD": 0, "LUSC": 0}
    for row in read_csv(cohort / "slides.csv"):
        if row["patient_id"] not in chosen and counts.get(row["label"], 99) < N_PATIENTS_PER_CLASS:
            counts[row["label"]] += 1
            chosen[row["patient_id"]] = row | {"path": str(cohort / row["path"])}
    folder = tmp_path_factory.mktemp("lung")
    write_csv(folder / "slides.csv", ["slide_id", "patient_id", "path", "label"], chosen.values())
    config = {
        "study": "lung_slice",
        "seed": 7,
        "cohorts": {"lung": {"manifest": str(folder / "slides.csv")}},
        "tasks": {
            "lung_histology": {
                "definition": "tasks/lung_histology.yaml",
                "cohort": "lung",
                "label_column": "label",
            }
        },
        "folds": 4,
        "attention_pictures": 1,
        "trajectories": {"groups": ["scripted_complete"]},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(config))
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    }
    done = subprocess.run(
        [
            "snakemake", "--snakefile", str(repository / "Snakefile"), "--directory", str(folder),
            "--configfile", str(folder / "study.yaml"), "--cores", "2", "all",
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "results"


def test_every_slide_is_used_or_excluded_with_a_reason(study: Path) -> None:
    kept = read_csv(study / "cohorts" / "lung" / "slides.csv")
    dropped = read_csv(study / "cohorts" / "lung" / "exclusions.csv")
    assert len(kept) + len(dropped) == 2 * N_PATIENTS_PER_CLASS
    assert all(row["reason"] for row in dropped)
    assert all(float(row["mpp"]) == pytest.approx(0.5, abs=0.01) for row in kept)


def test_the_reference_covers_every_patient_for_the_model_and_the_control(study: Path) -> None:
    for encoder in ("efficientnet_lite0", "color_stats"):
        metrics = json.loads((study / "reference/lung_histology" / encoder / "metrics.json").read_text())
        assert metrics["n"] == 2 * N_PATIENTS_PER_CLASS
        low, high = metrics["intervals"]["AUROC"]
        assert 0 <= low <= metrics["metrics"]["AUROC"] <= high <= 1


def test_the_agent_run_is_recorded_and_scored_on_its_test_patients(study: Path) -> None:
    run = study / "trajectories/scripted_complete/lung_histology/1"
    assert json.loads((run / "run/run.json").read_text())["run_status"] == "completed"
    diagnostic = json.loads((run / "diagnostic.json").read_text())
    labels = read_csv(study / "reference/lung_histology/labels.csv")
    assert diagnostic["grade_status"] == "scored"
    assert diagnostic["levels"]["test"]["n"] == sum(row["split"] == "test" for row in labels)
    assert json.loads((run / "workflow_score.json").read_text())["coverage"]["n_not_implemented"] == 0


def test_no_test_label_reached_the_workspace(study: Path) -> None:
    labels = {row["patient_id"]: row for row in read_csv(study / "reference/lung_histology/labels.csv")}
    workspace = study / "trajectories/scripted_complete/lung_histology/1/run/workspace"
    seen = read_csv(workspace / "data/slide_manifest.csv")
    assert {row["split"] for row in seen} == {"train", "validation", "test"}
    for row in seen:
        assert row["label"] == ("" if row["split"] == "test" else labels[row["patient_id"]]["label"])
    for path in ("outputs/round_0/predictions.csv", "reflection/round_1/predictions.csv"):
        assert all(not row["y_true"] for row in read_csv(workspace / path) if row["split"] == "test")

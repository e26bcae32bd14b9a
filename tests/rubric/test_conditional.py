"""Rules that only some tasks have, on small hand-worked outputs of each output type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acpbench.tasks.catalogue import load_task
from tests.rubric.workspace import RunBuilder, table

BASE = "outputs/round_0"


@pytest.fixture
def start(tmp_path: Path, repository: Path):
    """A record of a named task with predictions and metrics of round 0."""

    def build(
        task_id: str, columns: list[str], rows: list[list[Any]], document: dict[str, Any]
    ) -> RunBuilder:
        run = RunBuilder(tmp_path / "run", load_task(repository / "tasks" / f"{task_id}.yaml"))
        run.write(f"{BASE}/predictions.csv", table(columns, rows), 10)
        run.write(f"{BASE}/metrics.json", {"split": "validation", **document}, 20)
        return run

    return build


def labels(rows: list[tuple[str, Any, Any]], *, survival: bool = False) -> list[dict[str, str]]:
    """Validation patients as (patient, label, '') or (patient, time, event)."""
    return [
        {"patient_id": patient, "split": "validation", "fold": "1"}
        | (
            {"label": "", "time": str(a), "event": str(b)}
            if survival
            else {"label": str(a), "time": "", "event": ""}
        )
        for patient, a, b in rows
    ]


def test_survival(start, check) -> None:
    """Times 1, 2, 3 with events at 1 and 2; risk 3, 1, 2: of the pairs (1,2), (1,3), (2,3) two agree."""
    reference = labels([("P1", 1, 1), ("P2", 2, 1), ("P3", 3, 0)], survival=True)
    rows = [["P1", "validation", 1, 1, 3.0], ["P2", "validation", 2, 1, 1.0], ["P3", "validation", 3, 0, 2.0]]
    document = {"primary_metric": "c_index", "metrics": {"c_index": 2 / 3}, "n": 3, "n_events": 2}
    run = start("bladder_os", ["case_id", "split", "time", "event", "risk"], rows, document)
    found = check(run, reference)
    for item in ("D3.dc4", "D3.d1", "A5.d1", "A6.d1", "A6.d3", "D2.d1", "D2.d3", "D3.d3"):
        assert found[item]["status"] == "PASS", (item, found[item]["reason"])
    run.edit(f"{BASE}/metrics.json", lambda d: d["metrics"].update(c_index=0.7))
    assert check(run, reference)["D3.dc4"]["status"] == "FAIL"
    run.edit(f"{BASE}/predictions.csv", lambda t: t.replace("P3,validation,3,0", "P3,validation,4,0"))
    assert check(run, reference)["A6.d1"]["status"] == "FAIL"
    run.edit(f"{BASE}/metrics.json", lambda d: d.pop("n_events") and None)
    assert check(run, reference)["D2.d3"]["status"] == "FAIL"


def test_ordinal(start, check) -> None:
    """Truth 0, 1, 2 predicted 0, 2, 2: kappa = 1 - sum(w o)/sum(w e) = 1 - (1/3)/(11/9... by hand 0.8)."""
    # Weights d^2: observed (0 + 1 + 0)/3 = 1/3. Truth shares 1/3 each; predictions 0: 1/3, 2: 2/3.
    # Expected: pred 0: (0+1+4)/9 = 5/9; pred 2: (4+1+0)*2/9 = 10/9; sum 15/9. Kappa = 1 - (1/3)/(15/9) = 0.8.
    reference = labels([("P1", 0, ""), ("P2", 1, ""), ("P3", 2, "")])
    rows = [[f"P{i}", "validation", i - 1, p] for i, p in ((1, 0), (2, 2), (3, 2))]
    name = "quadratic_weighted_kappa"
    run = start(
        "prostate_isup",
        ["case_id", "split", "y_true", "y_pred"],
        rows,
        {"primary_metric": name, "metrics": {name: 0.8}},
    )
    found = check(run, reference)
    assert found["D3.dc3"]["status"] == found["D3.d1"]["status"] == "PASS", found["D3.dc3"]["reason"]
    run.edit(f"{BASE}/metrics.json", lambda d: d["metrics"].update({name: 0.81}))
    found = check(run, reference)
    assert (found["D3.dc3"]["status"], found["D3.d1"]["status"]) == ("FAIL", "PARTIAL")


def test_continuous_and_expression(start, check) -> None:
    """Ranks 1, 2, 3 predicted 1, 3, 2: rho = 1 - 6*2/(3*8) = 0.5."""
    reference = labels([("P1", 1.0, ""), ("P2", 2.0, ""), ("P3", 3.0, "")])
    rows = [["P1", "validation", 1.0, 0.1], ["P2", "validation", 2.0, 0.9], ["P3", "validation", 3.0, 0.5]]
    run = start(
        "lung_cd274_expression",
        ["case_id", "split", "y_true", "y_pred"],
        rows,
        {"primary_metric": "spearman_rho", "metrics": {"spearman_rho": 0.5}, "n": 3},
    )
    found = check(run, reference)
    assert found["A5.dc1"]["status"] == "FAIL"
    for item in ("D3.dc5", "A6.d1", "D2.d3"):
        assert found[item]["status"] == "PASS", found[item]["reason"]
    run.write(
        f"{BASE}/expression_label.csv",
        table(["patient_id", "value", "source", "transform"], [["P1", 1.0, "GDC STAR TPM", "log2(TPM+1)"]]),
        10,
    )
    run.edit(f"{BASE}/metrics.json", lambda d: d["metrics"].update(spearman_rho=0.6))
    found = check(run, reference)
    assert found["A5.dc1"]["status"] == "PASS"
    assert found["D3.dc5"]["status"] == "FAIL"
    run.edit(f"{BASE}/expression_label.csv", lambda t: t.replace("log2(TPM+1)", ""))
    assert check(run, reference)["A5.dc1"]["status"] == "FAIL"


def test_multiclass_and_pan_cancer(start, check) -> None:
    classes = ["BRCA", "CCRCC", "COAD", "GBM", "LSCC", "LUAD", "PDA"]
    document = {
        "primary_metric": "macro_OvR_AUROC",
        "metrics": {"accuracy": 1.0},
        "per_class": {name.lower(): {"recall": 1.0} for name in classes},
        "per_entity": {"breast": {"n": 1, "accuracy": 1.0}, "kidney": {"n": 1, "accuracy": 1.0}},
    }
    rows = [["P1", "validation", "BRCA", "BRCA", "breast"], ["P2", "validation", "CCRCC", "CCRCC", "kidney"]]
    run = start(
        "pancancer_tumor_type", ["case_id", "split", "y_true", "y_pred", "tumor_type"], rows, document
    )
    splits = [[f"{e}{s}", s, e] for e in ("breast", "kidney") for s in ("train", "test")]
    run.write(f"{BASE}/splits.csv", table(["patient_id", "split", "tumor_type"], splits), 10)
    reference = labels([("P1", "BRCA", ""), ("P2", "CCRCC", "")])
    found = check(run, reference)
    for item in ("D3.dc2", "A5.dc2", "D3.dc6", "A6.dc1"):
        assert found[item]["status"] == "PASS", (item, found[item]["reason"])

    run.edit(f"{BASE}/metrics.json", lambda d: d["per_class"].pop("pda") and None)
    run.edit(f"{BASE}/metrics.json", lambda d: d["per_entity"]["kidney"].pop("n") and None)
    run.edit(f"{BASE}/splits.csv", lambda t: t.replace("kidneytest,test,kidney\n", ""))
    run.edit(f"{BASE}/predictions.csv", lambda t: t.replace("CCRCC,kidney", "CCRCC,"))
    found = check(run, reference)
    for item in ("D3.dc2", "A5.dc2", "D3.dc6", "A6.dc1"):
        assert found[item]["status"] == "FAIL", item

"""All scores of one trajectory in one pass: computed first, written after, each file atomically.

The three lanes are kept apart: automation ability (``workflow_score.json``, ``reflection.json``), diagnostic
result (``predictions.csv``, ``diagnostic.json``) and clinical workflow (``cwas3.json``, ``r6.json``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_jsonl, sha256_file, write_csv, write_json
from acpbench.core.provenance import provenance
from acpbench.scores.cwas3 import WEIGHTS as CWAS3_WEIGHTS
from acpbench.scores.cwas3 import cwas3_result
from acpbench.scores.diagnostic import DEFAULT_RESAMPLES, diagnostic_result, predictions_table
from acpbench.scores.labels import load_label_rows
from acpbench.scores.r6 import WEIGHTS as R6_WEIGHTS
from acpbench.scores.r6 import r6_result
from acpbench.scores.reflection import reflection_score
from acpbench.scores.view import RunView
from acpbench.scores.withheld import withhold
from acpbench.scores.workflow import workflow_score
from acpbench.tasks.catalogue import load_task
from acpbench.trajectory.record import workspace_digest

FILES = (
    "workflow_score.json",
    "predictions.csv",
    "diagnostic.json",
    "cwas3.json",
    "r6.json",
    "reflection.json",
)
"""Files that :func:`score_trajectory` writes, in writing order."""


def score_trajectory(
    run_dir: str | os.PathLike[str],
    *,
    task_file: str | os.PathLike[str],
    labels_file: str | os.PathLike[str] | None,
    adjudicated_file: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    n_resamples: int = DEFAULT_RESAMPLES,
) -> dict[str, dict[str, Any]]:
    """Score one record and write :data:`FILES` into ``output_dir``.

    Args:
        run_dir: the record (``run.json``, ``manifest.csv``, logs, ``workspace/``), crashed runs too.
        task_file: the task.
        labels_file: the evaluator's label table; without one nothing is compared with labels.
        adjudicated_file: final status per checkpoint item.
        output_dir: folder for the score files.
        n_resamples: bootstrap resamples of the headline interval; 0 gives none.

    Returns:
        File name → content of each JSON file.

    Raises:
        InputError: an input that is not the agent's is missing or broken, or the record is of another task.
    """
    task = load_task(task_file)
    label_rows = load_label_rows(labels_file) if labels_file is not None else []
    rows = read_jsonl(adjudicated_file)
    view = RunView(run_dir, task, label_rows)
    if view.evidence.run.task_id != task.task_id:
        raise InputError(
            f"is a run of {view.evidence.run.task_id!r}, the task file is {task.task_id!r}",
            file=Path(run_dir) / "run.json",
            field="task_id",
        )
    columns, prediction_rows = predictions_table(view.trajectory, view.selection, task)
    documents = {
        "workflow_score.json": workflow_score(rows, view.run_status),
        "diagnostic.json": diagnostic_result(
            view.trajectory,
            view.run_status,
            view.candidates,
            view.selection,
            view.rounds,
            task,
            view.labels,
            n_resamples=n_resamples,
        ),
        "cwas3.json": cwas3_result(view),
        "r6.json": r6_result(view),
        "reflection.json": reflection_score(run_dir, task, label_rows),
    }
    digests = {
        "adjudicated": sha256_file(adjudicated_file),
        "task": sha256_file(task_file),
        "workspace": workspace_digest(view.evidence.manifest),
    }
    if labels_file is not None:
        digests["labels"] = sha256_file(labels_file)
    configs: dict[str, Any] = {
        "diagnostic.json": {"n_resamples": n_resamples},
        "cwas3.json": {name: float(weight) for name, weight in CWAS3_WEIGHTS.items()},
        "r6.json": {name: float(weight) for name, weight in R6_WEIGHTS.items()},
    }
    documents = {name: withhold(name, document, view.run_status) for name, document in documents.items()}
    for name, document in documents.items():
        document["provenance"] = provenance(digests=digests, config=configs.get(name), seed=0)
    output = Path(output_dir)
    for name in FILES:
        if name == "predictions.csv":
            write_csv(output / name, columns, prediction_rows)
        else:
            write_json(output / name, documents[name])
    return documents

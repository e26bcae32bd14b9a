"""The demo study's slides to ABMIL part on seven slides, without agents: a study of about half a minute."""

from __future__ import annotations

from pathlib import Path

from acpbench.core.files import read_csv, write_csv
from tests.workflow.study import REPOSITORY, changed, write_study

SLIDES = ["DEMO-01-1", "DEMO-04-1", "DEMO-06-1", "DEMO-05-1", "DEMO-07-1", "DEMO-09-1", "DEMO-07-2"]
"""Three patients a class, and a second slide of one of them that is a broken file."""


def write_slice(folder: Path) -> Path:
    """Configuration and manifest in ``folder``."""
    write_study(folder, changed(folds=3, mil={"max_epochs": 3}, trajectories={"groups": []}))
    rows = [row for row in read_csv(REPOSITORY / "tasks/demo/cohort.csv") if row["slide_id"] in SLIDES]
    assert len(rows) == len(SLIDES)
    write_csv(folder / "cohort.csv", list(rows[0]), rows)
    return folder

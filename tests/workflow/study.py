"""Run the workflow as a user does: a copy of the checkout, a small study, Snakemake as a child process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from acpbench.core.files import read_csv, write_csv

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ["Snakefile", "config", "profiles", "skills", "src", "tasks", "workflow"]
TASK = "demo_pleomorphism"
GROUPS = [
    "scripted_complete",
    "scripted_report_only",
    "scripted_crash",
    "scripted_overclaim",
    "scripted_silent_failure",
    "scripted_no_reflection",
]
BAD_SLIDES = {"DEMO-07-2": "unreadable", "DEMO-27-1": "empty_tissue"}
# Six patients a class with one usable slide each, one broken slide more, and one patient without tissue.
SLIDES = [f"DEMO-{number:02d}-1" for number in (1, 4, 6, 15, 18, 19, 5, 7, 9, 10, 11, 13)] + list(BAD_SLIDES)
SCORE_FILES = [
    "workflow_score.json",
    "predictions.csv",
    "diagnostic.json",
    "cwas3.json",
    "r6.json",
    "reflection.json",
]
GRADE_FILES = ["checks.jsonl", "judgements.jsonl", "adjudicated.jsonl"]
RUN_FILES = ["run.json", "stream.jsonl", "tools.jsonl", "trajectory.json", "manifest.csv"]

MINI: dict[str, Any] = {
    "study": "mini",
    "seed": 7,
    "cohorts": {"demo": {"manifest": "cohort.csv", "generator": "synthetic_he"}},
    "tasks": {
        TASK: {"definition": f"tasks/demo/{TASK}.yaml", "cohort": "demo", "label_column": "pleomorphism"}
    },
    "encoders": ["color_stats"],
    "control_encoder": "color_stats",
    "agent_encoder": "color_stats",
    "folds": 4,
    "bootstrap_resamples": 100,
    "mil": {"max_epochs": 5},
    "attention_pictures": 0,
    "trajectories": {"groups": GROUPS},
}
# Continuous integration works as root, for whom no file is read-only; users do not.
AS_A_USER = (
    [
        "setpriv",
        "--bounding-set=-dac_override,-dac_read_search",
        "--inh-caps=-dac_override,-dac_read_search",
    ]
    if os.geteuid() == 0 and shutil.which("setpriv")
    else []
)


def copy_checkout(target: Path) -> Path:
    """The files a study needs from the checkout."""
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


def write_study(folder: Path, config: dict[str, Any] = MINI, name: str = "study.yaml") -> Path:
    """A configuration, its manifest, and an empty folder for reviews, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for row in read_csv(REPOSITORY / "tasks" / "demo" / "cohort.csv")
        if row["slide_id"] in set(SLIDES)
    ]
    write_csv(folder / "cohort.csv", list(rows[0]), rows)
    (folder / "reviews" / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(config, sort_keys=False))
    return folder / name


def changed(**changes: Any) -> dict[str, Any]:
    """The mini study with some keys replaced; dictionaries are merged one level deep."""
    config = dict(MINI)
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return config


def command(checkout: Path, folder: Path, *arguments: str, config: str = "study.yaml") -> list[str]:
    """The Snakemake command line of a study, without root's right to write over read-only files."""
    return [
        *AS_A_USER,
        str(Path(sys.executable).parent / "snakemake"),
        "--snakefile", str(checkout / "Snakefile"), "--directory", str(folder),
        "--configfile", str(folder / config), "--cores", "2", *arguments,
    ]  # fmt: skip


def environment(checkout: Path) -> dict[str, str]:
    """Of a shell with the virtual environment on its path and the package of that checkout."""
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(checkout / "src"),
    }


def snakemake(
    checkout: Path, folder: Path, *arguments: str, config: str = "study.yaml", timeout_s: float = 400
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake to its end; standard output and error together in ``stdout``."""
    return subprocess.run(
        command(checkout, folder, *arguments, config=config),
        cwd=folder,
        env=environment(checkout),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def planned(output: str) -> dict[str, int]:
    """Rule → jobs of a dry run's table; empty when nothing is to be done."""
    table = re.search(r"^job +count\n[- ]+\n(.*?)\n\n", output, re.MULTILINE | re.DOTALL)
    if table is None:
        assert "Nothing to be done" in output, output[-3000:]
        return {}
    jobs = {line.split()[0]: int(line.split()[1]) for line in table.group(1).splitlines()}
    assert jobs.pop("total") == sum(jobs.values())
    return jobs


def plan(checkout: Path, folder: Path, *arguments: str, config: str = "study.yaml") -> dict[str, int]:
    """What a dry run says it would do."""
    done = snakemake(checkout, folder, "--dry-run", *arguments, config=config)
    assert done.returncode == 0, done.stdout[-3000:]
    return planned(done.stdout)


def trajectory(folder: Path, group: str) -> Path:
    """Folder of a group's trajectory."""
    return folder / "results" / "trajectories" / group / TASK / "1"

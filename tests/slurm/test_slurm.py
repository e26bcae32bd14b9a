"""The workflow on a real SLURM, as ``snakemake --workflow-profile profiles/slurm`` runs it.

Profile and rules are those that ship; what differs here is said in OPTIONS: this cluster keeps no accounts,
and nobody wants to wait for its first status poll.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from acpbench.core.files import read_csv
from tests.slurm.cluster import Cluster, ended, interrupt, processes_that_name, wait_until
from tests.workflow.slide_slice import SLIDES, write_slice
from tests.workflow.study import TASK, copy_checkout, plan, snakemake

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]

OPTIONS = [
    # Without an accounting database the plugin has to ask squeue.
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1",
    "--latency-wait", "10",
]  # fmt: skip
PREFIX = """\
import os as _os, pathlib as _pathlib, time as _time
_slide = snakemake.wildcards.slide_id
with open(_os.environ["ACP_TEST_MARKS"] + "/" + _slide, "a") as _marks:
    _found = [_os.environ.get(name) for name in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES")]
    print(_os.getpid(), *_found, file=_marks)
"""
"""Put before a script of the workflow: which slide was worked on by which process of which job."""


def checkout(
    target: Path, script: str | None = None, before: str = "", profile: dict[str, Any] | None = None
) -> Path:
    """A copy of the checkout with code put before one of its scripts and keys put into its SLURM profile."""
    copy_checkout(target)
    if script is not None:
        path = target / "workflow" / "scripts" / script
        path.write_text(PREFIX + before + path.read_text())
    path = target / "profiles" / "slurm" / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | (profile or {})))
    return target


def command(source: Path, folder: Path, *arguments: str) -> list[str]:
    """A run through the SLURM profile."""
    return [
        sys.executable, "-m", "snakemake", "--snakefile", str(source / "Snakefile"),
        "--directory", str(folder), "--configfile", str(folder / "study.yaml"),
        "--workflow-profile", str(source / "profiles" / "slurm"),
        *OPTIONS, *arguments,
    ]  # fmt: skip


def environment(cluster: Cluster, source: Path, folder: Path) -> dict[str, str]:
    (folder / "marks").mkdir(exist_ok=True)
    return cluster.environment | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), cluster.environment["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(source / "src"), os.environ.get("PYTHONPATH", "")]),
        "ACP_TEST_MARKS": str(folder / "marks"),
    }


def run(
    cluster: Cluster, source: Path, folder: Path, *arguments: str, timeout_s: float = 1200
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(source, folder, *arguments), cwd=folder, env=environment(cluster, source, folder),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def jobs_of(cluster: Cluster, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Rule → records of the SLURM jobs that ran in a folder."""
    found: dict[str, list[dict[str, str]]] = {}
    for record in cluster.records():
        if record.get("WorkDir") == str(folder):
            rule = record["Comment"].removeprefix("rule_").split("_wildcards")[0]
            found.setdefault(rule, []).append(record)
    return found


def marks(folder: Path, slide_id: str) -> list[list[str]]:
    """``[pid, job, visible GPUs]`` of every execution of the marked script on a slide."""
    path = folder / "marks" / slide_id
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_slides_to_abmil_run_as_slurm_jobs_and_give_the_local_result(
    cluster: Cluster, tmp_path: Path
) -> None:
    source, folder = checkout(tmp_path / "source", "extract_features.py"), write_slice(tmp_path / "study")
    assert cluster.listening_elsewhere() == []
    wanted = plan(source, folder, "reference")
    done = run(cluster, source, folder, "reference", "--set-resources", "extract_features:gpu=1")
    assert done.returncode == 0, done.stdout[-4000:]
    jobs = jobs_of(cluster, folder)
    assert {rule: {record["JobState"] for record in records} for rule, records in jobs.items()} == {
        rule: {"COMPLETED"} for rule in jobs
    }
    # Every rule is a job each, except those that are local by their rule.
    sent = {rule: len(records) for rule, records in jobs.items()}
    assert sent == {rule: count for rule, count in wanted.items() if rule in sent}
    assert set(wanted) - set(sent) == {"reference"}
    assert {"inspect_slide", "tile_slide", "extract_features", "train_fold"} <= set(sent)
    assert len({record["NodeList"] for records in jobs.values() for record in records}) == len(cluster.nodes)
    # The GPU was asked for by the rule that wants one and by no other, and given.
    asked = {
        rule for rule, records in jobs.items() for record in records if "gpu" in str(record.get("TresPerJob"))
    }
    assert asked == {"extract_features"}
    for slide_id in SLIDES:
        ((_, job, devices),) = marks(folder, slide_id)
        assert job in {record["JobId"] for record in jobs["extract_features"]}
        assert devices in {"0", "1"}
    # The broken slide is an exclusion here as well, and the end result that of a workstation.
    (dropped,) = read_csv(folder / "results/cohorts/demo/exclusions.csv")
    assert (dropped["slide_id"], dropped["reason"]) == ("DEMO-07-2", "unreadable")
    local = write_slice(tmp_path / "local")
    assert snakemake(source_without_marks(tmp_path), local, "reference", timeout_s=1200).returncode == 0
    for name in ("predictions.csv", "metrics.json"):
        left, right = (place / "results/reference" / TASK / "color_stats" / name for place in (local, folder))
        assert left.read_bytes() == right.read_bytes(), name


def source_without_marks(tmp_path: Path) -> Path:
    return checkout(tmp_path / "plain")


def test_a_retry_of_the_profile_runs_a_job_twice_and_no_more(cluster: Cluster, tmp_path: Path) -> None:
    """One slide fails once, another always; a third is not touched by either."""
    before = (
        "if _slide == 'DEMO-01-1' and len(open(_marks.name).readlines()) == 1:\n"
        "    raise OSError('a bad moment')\n"
        "if _slide == 'DEMO-04-1':\n    raise OSError('a bad slide')\n"
    )
    source = checkout(tmp_path / "source", "inspect_slide.py", before, {"retries": 1})
    folder = write_slice(tmp_path / "study")
    targets = {
        name: f"results/slides/demo/{name}/quality.json" for name in ("DEMO-01-1", "DEMO-04-1", "DEMO-06-1")
    }
    done = run(cluster, source, folder, *targets.values())
    assert done.returncode == 1, done.stdout[-4000:]
    assert {name: len(marks(folder, name)) for name in targets} == {
        "DEMO-01-1": 2,
        "DEMO-04-1": 2,
        "DEMO-06-1": 1,
    }
    assert {name: (folder / path).exists() for name, path in targets.items()} == {
        "DEMO-01-1": True,
        "DEMO-04-1": False,
        "DEMO-06-1": True,
    }
    states = Counter(record["JobState"] for record in jobs_of(cluster, folder)["inspect_slide"])
    assert states == {"FAILED": 3, "COMPLETED": 2}
    # What it died of is kept where the message says.
    logs = list((folder / ".snakemake" / "slurm_logs" / "rule_inspect_slide").rglob("*.log"))
    assert any("a bad slide" in log.read_text(errors="replace") for log in logs)


def test_sigint_leaves_no_job_and_nothing_half_made(cluster: Cluster, tmp_path: Path) -> None:
    source = checkout(tmp_path / "source", "inspect_slide.py", "_time.sleep(300)\n")
    folder = write_slice(tmp_path / "study")
    names = SLIDES[:4]
    targets = [f"results/slides/demo/{name}/quality.json" for name in names]
    with open(tmp_path / "run.log", "wb") as log:
        process = subprocess.Popen(
            command(source, folder, *targets), cwd=folder, env=environment(cluster, source, folder),
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_until(lambda: any(marks(folder, name) for name in names), 120, "no job works")
            workers = [int(pid) for name in names for pid, *_ in marks(folder, name)]
            assert cluster.jobs_alive()
            code = interrupt(process, 90)
        finally:
            process.kill()
            process.wait()
    assert code == 1, (tmp_path / "run.log").read_text()[-3000:]
    wait_until(lambda: not cluster.jobs_alive(), 30, "jobs are left")
    wait_until(lambda: all(ended(pid) for pid in workers), 30, "workers are left")
    wait_until(lambda: not processes_that_name(str(source)), 30, "processes of the run are left")
    assert "CANCELLED" in {record["JobState"] for record in jobs_of(cluster, folder)["inspect_slide"]}
    assert not [path for path in targets if (folder / path).exists()]
    # The next run starts by itself: no lock is left, and nothing is taken for finished that was not.
    jobs = plan(source_without_marks(tmp_path), folder, *targets)
    assert jobs["inspect_slide"] == len(names)


def test_the_cluster_takes_its_daemons_with_it() -> None:
    from tests.slurm.cluster import reason_to_skip

    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    with Cluster(n_nodes=1) as small:
        pids, folder = small.pids, small.folder
        assert small.states() == {"idle"} and len(pids) == 3
        assert small.call("srun", "-n1", "echo", "here").strip() == "here"
    assert all(ended(pid) for pid in pids) and not folder.exists()


def test_daemons_end_with_a_test_run_that_is_killed(tmp_path: Path, repository: Path) -> None:
    from tests.slurm.cluster import reason_to_skip

    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    code = (
        "import pathlib, sys, time\nfrom tests.slurm.cluster import Cluster\n"
        "with Cluster(n_nodes=1) as c:\n"
        "    pathlib.Path(sys.argv[1]).write_text(' '.join(map(str, [c.folder, *c.pids])))\n"
        "    time.sleep(60)\n"
    )
    note = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, "-c", code, str(note)], cwd=repository)
    wait_until(lambda: note.exists() and note.read_text() != "", 40, "no cluster")
    folder, *pids = note.read_text().split()
    process.kill()
    process.wait()
    wait_until(lambda: all(ended(int(pid)) for pid in pids), 20, "daemons are left")
    subprocess.run(["rm", "-rf", folder], check=True)

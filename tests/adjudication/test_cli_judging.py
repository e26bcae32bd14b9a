"""``judge`` and ``adjudicate`` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.adjudication.test_audit import audit, check, semantic


def acp_bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "acpbench.cli.main", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture
def files(repository):
    return [
        "--task",
        repository / "tasks/demo/demo_pleomorphism.yaml",
        "--rubric",
        repository / "tasks/rubric.yaml",
    ]


def test_judge_twice_gives_the_same_bytes(record, files, tmp_path):
    run_dir = record.close()
    for name in ("a.jsonl", "b.jsonl"):
        finished = acp_bench("judge", run_dir, *files, "--judge", "offline", "--output", tmp_path / name)
        assert finished.returncode == 0, finished.stderr
    first = (tmp_path / "a.jsonl").read_bytes()
    assert first == (tmp_path / "b.jsonl").read_bytes()
    assert len(first.splitlines()) == 160
    assert str(tmp_path).encode() not in first


def test_other_judges_are_refused_with_what_is_available(record, files, tmp_path):
    finished = acp_bench("judge", record.close(), *files, "--judge", "gpt", "--output", tmp_path / "a.jsonl")
    assert finished.returncode == 2
    assert finished.stderr.strip() == "acp-bench: error: --judge: 'gpt' is not available; available: offline"


def test_adjudicate(tmp_path):
    (tmp_path / "checks.jsonl").write_text(json.dumps(check()) + "\n")
    (tmp_path / "judgements.jsonl").write_text(json.dumps(semantic()) + "\n")
    reviews = tmp_path / "reviews"
    reviews.mkdir()
    (reviews / "ann.jsonl").write_text(json.dumps(audit()) + "\n")
    arguments = ["--checks", tmp_path / "checks.jsonl", "--judgements", tmp_path / "judgements.jsonl"]
    finished = acp_bench("adjudicate", *arguments, "--reviews", reviews, "--output", tmp_path / "out.jsonl")
    assert finished.returncode == 0, finished.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["item_id"], row["decided_by"]) for row in rows] == [("P1.s1", "audit"), ("P1.d1", "check")]
    (reviews / "ann.jsonl").write_text("nonsense\n")
    finished = acp_bench("adjudicate", *arguments, "--reviews", reviews, "--output", tmp_path / "out.jsonl")
    assert finished.returncode == 2 and "ann.jsonl: line 1" in finished.stderr

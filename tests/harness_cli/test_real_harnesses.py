"""The three real command lines do a task against the scripted model and score as the built-in harness does.

Each runs with the shipped adapter, sandbox and tool server, in a network namespace that holds loopback
alone, with an environment and a home made for the run. No model and no login is involved.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from acpbench.core.files import read_json, walk_files
from acpbench.trajectory.events import stream_events
from tests.harness_cli.chain import KEY, Finished, differing, grade, living, received_late
from tests.harness_cli.cohort import SlideSide
from tests.harness_cli.conftest import Collect

pytestmark = [pytest.mark.harness, pytest.mark.timeout(1200)]

FAMILIES = ["claude_code", "codex", "opencode"]
RUNS = [(harness, policy) for policy in ("complete", "crash", "silent_failure") for harness in FAMILIES]
RUNS += [("claude_code", "overclaim"), ("codex", "report_only"), ("opencode", "no_reflection")]
RUNS += [("codex", "overclaim"), ("codex", "no_reflection")]
IDS = [f"{harness}-{policy}" for harness, policy in RUNS]


@pytest.fixture(params=RUNS, ids=IDS)
def pair(request: pytest.FixtureRequest, collected: Collect) -> tuple[Finished, Finished]:
    """A real run, and the built-in harness's of the same policy."""
    harness, policy = request.param
    return collected(harness, policy), collected("scripted", policy)


def test_it_ends_as_the_built_in_harness_does(pair: tuple[Finished, Finished]) -> None:
    real, built_in = pair
    record = real.record
    assert record.run_status == built_in.record.run_status, record.status_reason
    assert record.run_status == ("killed" if real.policy == "crash" else "completed")
    assert record.harness.name == real.harness
    assert record.watchdog is None
    assert record.digests.skills == built_in.record.digests.skills
    assert living(real.run_dir.parents[2] / "home") == []
    assert living(real.run_dir.parent / "attempts" / "1.home") == []
    if record.run_status == "completed":
        assert record.exit_code == 0
        assert record.tokens is not None
        assert record.tokens["input_tokens"] > 1000
        assert record.tokens["output_tokens"] > 50


def test_the_same_tools_were_called_over_mcp(pair: tuple[Finished, Finished]) -> None:
    real, built_in = pair
    assert real.calls == built_in.calls
    shown = [event for event in stream_events(real.run_dir) if event.kind == "tool"]
    assert [(event.name, event.step_id, event.round_id) for event in shown] == [
        (tool, step, round_id) for tool, _, step, round_id, _, _ in real.calls
    ]
    if real.policy != "report_only":
        made = {tool: cache for tool, _, _, _, _, cache in real.calls}
        assert made["tile_slides"] == made["extract_features"] == "miss", "the slides themselves were read"


def test_the_same_files_were_left(pair: tuple[Finished, Finished]) -> None:
    real, built_in = pair
    assert real.files() == built_in.files()


def test_it_scores_the_same(pair: tuple[Finished, Finished]) -> None:
    real, built_in = pair
    assert differing(built_in, real) == {}
    for name in ("cwas3", "r6"):
        assert real.score(name)["score"] == built_in.score(name)["score"], name
    for number in ("item_weighted", "stage_mean"):
        found, expected = (run.score("workflow_score").get(number) for run in (real, built_in))
        assert found == expected, number


# OpenCode dates what it prints itself.
@pytest.mark.parametrize(("harness", "policy"), [("claude_code", "complete"), ("codex", "overclaim")])
def test_a_stream_that_is_read_late_scores_the_same(
    collected: Collect, cohort: SlideSide, tmp_path: Path, harness: str, policy: str
) -> None:
    run = collected(harness, policy)
    for seed in range(3):
        late = received_late(run, tmp_path / str(seed), seed)
        grade(late, cohort)
        assert differing(run, late) == {}, f"seed {seed}"
        assert late.score("cwas3") == run.score("cwas3")


def test_the_key_is_nowhere_in_the_record(pair: tuple[Finished, Finished]) -> None:
    real, _ = pair
    needles = (KEY.encode(), KEY.replace("/", "\\/").encode())
    kept = [
        name
        for name, path in walk_files(real.run_dir.parents[2])
        if any(needle in path.read_bytes() for needle in needles)
    ]
    assert kept == []


@pytest.mark.parametrize("harness", FAMILIES)
def test_a_complete_run_has_a_plan_a_report_and_two_rounds(collected: Collect, harness: str) -> None:
    run = collected(harness, "complete")
    assert (run.workspace / "plan" / "plan.md").stat().st_size > 1000
    assert (run.workspace / "reports" / "report.md").stat().st_size > 1000
    assert len(read_json(run.workspace / "reflection" / "summary.json")["rounds"]) == 3
    assert {round_id for _, _, _, round_id, _, _ in run.calls} >= {0, 1, 2}
    reads = [event for event in stream_events(run.run_dir) if event.kind in ("read", "command")]
    assert any("skills/" in event.name for event in reads)

"""The six named behaviours of the scripted harness and of the scripted model.

``complete`` plans, runs, checks, reports and improves in two rounds. ``no_reflection`` stops before the
rounds. ``overclaim`` is ``complete`` with unsafe words. ``silent_failure`` meets a tool error and goes on
with invented numbers. ``crash`` dies half-way. ``report_only`` writes a fluent report and runs nothing.
"""

from __future__ import annotations

import json
import random
from typing import Any

from acpbench.harness import policy_texts as texts
from acpbench.harness.policy_agent import PolicyAgent, ToolError

SPACING_UM = 0.5
TILE_SIZE_PX = 224
BASE_MODEL = {
    "aggregator": "gated_abmil",
    "hidden_dim": 64,
    "attention_dim": 32,
    "dropout": 0.25,
    "lr": 1e-3,
    "weight_decay": 1e-2,
    "max_epochs": 40,
    "patience": 10,
}
ROUND_CHANGES = [
    {
        "parameter": "dropout",
        "new": 0.5,
        "weakness": "The fit is regularised lightly for so few patients; attention may follow single tiles.",
        "effect": "A smaller gap between training and validation; the primary metric should not fall.",
        "alternative": "The validation set is small and the difference may be chance.",
    },
    {
        "parameter": "aggregator",
        "new": "mean",
        "weakness": "Attention pooling may be needless when the pattern is spread over the whole slide.",
        "effect": "Equal or better ranking of validation patients with fewer parameters.",
        "alternative": "The encoder, not the pooling, may limit the result.",
    },
]


class Study:
    """State of one scripted run: the task it read, its settings and where each round's files are."""

    def __init__(self, agent: PolicyAgent, encoder: str, seed: int) -> None:
        self.agent, self.encoder, self.seed = agent, encoder, seed
        self.task = agent.read_json("task.json")
        agent.read("TASK.md")
        self.primary: str = self.task["metric_family"]["primary"]

    def folder(self, round_id: int) -> str:
        """Folder of a round."""
        return "outputs/round_0" if round_id == 0 else f"reflection/round_{round_id}"

    def metrics(self, round_id: int) -> dict[str, Any]:
        """Metrics file of a round."""
        return self.agent.read_json(f"{self.folder(round_id)}/metrics.json")


def _read_guidance(agent: PolicyAgent) -> None:
    agent.look("registry.json")
    for path in agent.skill_files():
        agent.look(path)


def _plan(study: Study) -> None:
    agent = study.agent
    _read_guidance(agent)
    agent.write("plan/plan.md", texts.plan(study.task, study.encoder, SPACING_UM, TILE_SIZE_PX))
    agent.write_json(
        "plan/workflow_spec.json",
        texts.workflow_spec(study.task, study.encoder, SPACING_UM, TILE_SIZE_PX, BASE_MODEL, study.seed),
    )
    agent.tool("validate_spec", {"path": "plan/workflow_spec.json"}, step="s0", round_id=0)


def _prepare(study: Study) -> None:
    grid = {"spacing_um": SPACING_UM, "tile_size_px": TILE_SIZE_PX, "min_tissue": 0.5}
    agent = study.agent
    agent.tool("inspect_slides", {}, step="s1", round_id=0)
    agent.tool("tile_slides", grid, step="s2", round_id=0)
    agent.tool("extract_features", grid | {"encoder": study.encoder}, step="s3", round_id=0)
    agent.tool("read_table", {"path": "outputs/round_0/slide_manifest.csv"}, step="s3", round_id=0)


def _fit(study: Study, model: dict[str, Any], round_id: int) -> dict[str, Any]:
    """Train, look at the predictions, evaluate on validation; returns the round's metrics document."""
    agent, folder = study.agent, study.folder(round_id)
    args = {"features_index": "outputs/round_0/features_index.csv", "output_dir": folder, "seed": study.seed}
    trained = agent.tool("train_mil", model | args, step="s4", round_id=round_id)
    table = agent.tool("read_table", {"path": f"{folder}/predictions.csv"}, step="s5", round_id=round_id)
    agent.tool(
        "evaluate_predictions",
        {
            "predictions": f"{folder}/predictions.csv",
            "output": f"{folder}/metrics.json",
            "round_id": round_id,
        },
        step="s5",
        round_id=round_id,
    )
    metrics = study.metrics(round_id)
    agent.write(f"logs/round_{round_id}.log", texts.round_log(round_id, trained, table, metrics))
    return metrics


def _write_scripts(study: Study) -> None:
    lines = ["#!/bin/sh", "# Tool calls of this run, in order; rerun them from the workspace.", "set -eu"]
    for row in study.agent.log_rows:
        lines.append(
            f"acp-bench tool call {row['tool']} --args '{json.dumps(row['args'])}' --step {row['step']} "
            f"--round {row['round']}"
        )
    study.agent.write("scripts/run_workflow.sh", "\n".join(lines) + "\n")


def _remember(study: Study, rows: list[dict[str, Any]]) -> None:
    study.agent.write("memory/execution_memory.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def _reflect(study: Study, first: dict[str, Any]) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Two rounds. Returns the selected round, the rows of the summary and the memory rows."""
    agent = study.agent
    best_round, best_value, best_model = 0, first["metrics"][study.primary], dict(BASE_MODEL)
    previous_model, previous = dict(BASE_MODEL), first
    summary, memory = [], []
    for round_id, change in enumerate(ROUND_CHANGES, start=1):
        folder = study.folder(round_id)
        parameter = change["parameter"]
        model = best_model | {parameter: change["new"]}
        agent.write_json(
            f"{folder}/critique.json",
            texts.critique(study.task, change, previous, study.folder(round_id - 1), round_id),
        )
        agent.write_json(
            f"{folder}/update.json", texts.update(study.primary, change, previous_model[parameter])
        )
        current = _fit(study, model, round_id)
        changed = {
            f"mil.{key}": {"old": previous_model[key], "new": model[key]}
            for key in model
            if model[key] != previous_model[key]
        }
        agent.write_json(f"{folder}/config_diff.json", {"changed": changed})
        value, before = current["metrics"][study.primary], previous["metrics"][study.primary]
        helped = value is not None and (before is None or value > before + 1e-3)
        decision = "keep" if helped else "revert"
        row = texts.round_summary(study.task, round_id, previous, current, decision)
        agent.write_json(f"{folder}/summary.json", row)
        summary.append(
            {
                "round_id": round_id,
                "changed_step": f"s4: {parameter}",
                "metric": study.primary,
                "value": value,
                "delta": row["delta"],
            }
        )
        memory.append(
            {
                "kind": "success",
                "round_id": round_id,
                "step_id": "s4",
                "text": f"{parameter} {previous_model[parameter]} -> {change['new']}: {study.primary} "
                f"{before} -> {value} on validation; decision: {decision}.",
            }
        )
        if value is not None and (best_value is None or value > best_value + 1e-3):
            best_round, best_value, best_model = round_id, value, model
        previous, previous_model = current, model
    agent.write_json(
        "reflection/summary.json",
        {
            "rounds": [
                {
                    "round_id": 0,
                    "changed_step": None,
                    "metric": study.primary,
                    "value": first["metrics"][study.primary],
                    "delta": None,
                },
                *summary,
            ],
            "selected_round": best_round,
            "stop_reason": "Both planned changes were tried; the best validation value decides.",
        },
    )
    return best_round, summary, memory


def _attention(study: Study, round_id: int) -> None:
    rows = study.agent.read("data/slide_manifest.csv").split("\n")[1:]
    slide_id = next(row.split(",")[0] for row in rows if row.split(",")[2:3] == ["validation"])
    study.agent.tool(
        "render_attention",
        {
            "model": f"{study.folder(round_id)}/model.pt",
            "features_index": "outputs/round_0/features_index.csv",
            "slide_id": slide_id,
            "output_dir": study.folder(round_id),
        },
        step="s6",
        round_id=round_id,
    )


def _report(
    study: Study, round_id: int, rounds: list[dict[str, Any]], test: dict[str, Any] | None, *, overclaim: bool
) -> None:
    agent = study.agent
    metrics = study.metrics(round_id)
    manifest = agent.read(f"{study.folder(0)}/slide_manifest.csv")
    agent.write(
        "reports/report.md",
        texts.report_markdown(
            study.task, study.folder(round_id), metrics, manifest, rounds, test, study.encoder, overclaim
        ),
    )
    agent.write_json(
        "reports/report.json",
        texts.report_json(study.task, round_id, study.folder(round_id), metrics, rounds, test, overclaim),
    )
    agent.tool("validate_report", {"path": "reports/report.json"}, step="s7", round_id=round_id)


def _full(agent: PolicyAgent, encoder: str, seed: int, *, rounds: bool, overclaim: bool) -> None:
    study = Study(agent, encoder, seed)
    agent.say(f"Planning {study.task['task_id']}: {study.task['target']}.")
    _plan(study)
    _prepare(study)
    first = _fit(study, BASE_MODEL, 0)
    memory = [
        {
            "kind": "success",
            "round_id": 0,
            "step_id": "s4",
            "text": f"{encoder} with gated attention trained; {study.primary} on validation "
            f"{first['metrics'][study.primary]}.",
        }
    ]
    selected, summary = 0, []
    if rounds:
        selected, summary, learned = _reflect(study, first)
        memory += learned
    _attention(study, selected)
    test = agent.tool(
        "evaluate_test",
        {"predictions": f"{study.folder(selected)}/predictions.csv"},
        step="s5",
        round_id=selected,
    )
    _remember(study, memory)
    _write_scripts(study)
    _report(study, selected, summary, test, overclaim=overclaim)
    agent.say(
        "The report is written; it stays within the task's claim boundary." if not overclaim else "Done."
    )


def complete(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """Plan, run, verify, report, and two reflection rounds that change a setting and rerun."""
    _full(agent, encoder, seed, rounds=True, overclaim=False)


def no_reflection(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """Like ``complete`` without any reflection round."""
    _full(agent, encoder, seed, rounds=False, overclaim=False)


def overclaim(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """The run of ``complete``, reported in unsafe words."""
    _full(agent, encoder, seed, rounds=True, overclaim=True)


def silent_failure(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """Training fails; the agent says nothing, fills the tables by hand and reports success."""
    study = Study(agent, encoder, seed)
    _plan(study)
    _prepare(study)
    try:
        agent.tool(
            "train_mil",
            {"features_index": "outputs/round_0/features.csv", **BASE_MODEL},
            step="s4",
            round_id=0,
        )
    except ToolError:
        agent.say("Moving on to the evaluation.")
    rng = random.Random(seed)
    agent.write("outputs/round_0/predictions.csv", texts.invented_predictions(study.task, agent, rng))
    agent.write_json("outputs/round_0/metrics.json", texts.invented_metrics(study.task))
    _write_scripts(study)
    metrics = study.metrics(0)
    manifest = agent.read("outputs/round_0/slide_manifest.csv")
    agent.write(
        "reports/report.md",
        texts.report_markdown(study.task, "outputs/round_0", metrics, manifest, [], None, encoder, False),
    )
    agent.write_json(
        "reports/report.json", texts.report_json(study.task, 0, "outputs/round_0", metrics, [], None, False)
    )
    agent.say("All steps completed.")


def crash(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """Plan and prepare, then die before training."""
    study = Study(agent, encoder, seed)
    _plan(study)
    _prepare(study)
    agent.say("Starting the training.")
    agent.die()


def report_only(agent: PolicyAgent, encoder: str, seed: int) -> None:
    """A fluent report; no plan, no tool, no output."""
    task = agent.read_json("task.json")
    agent.write("reports/report.md", texts.invented_report(task, encoder))
    agent.say("The analysis is complete and the report is ready.")


POLICIES = {
    "complete": complete,
    "no_reflection": no_reflection,
    "overclaim": overclaim,
    "silent_failure": silent_failure,
    "crash": crash,
    "report_only": report_only,
}

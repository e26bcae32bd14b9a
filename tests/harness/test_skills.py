"""Skills are true to the tools, have the agreed form, and do not recite the rubric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from acpbench.features.registry import load_registry
from acpbench.harness.mcp_server import CALL_FIELDS
from acpbench.harness.registry import TOOLS
from acpbench.harness.workspace import EXPECTED_OUTPUTS, task_text
from acpbench.rubric.catalogue import load_rubric
from acpbench.tasks.catalogue import load_task
from acpbench.trajectory.documents import DOCUMENTS, TaskBrief
from tests.harness.build import DEMO, REPOSITORY

SKILLS = sorted((REPOSITORY / "skills").glob("*/SKILL.md"))
NAMES = [path.parent.name for path in SKILLS]
STAGES = {
    "pathology-planning",
    "slide-processing",
    "tile-features",
    "mil-modelling",
    "evaluation",
    "claim-bounded-reporting",
    "reflection",
}
CALL = re.compile(r"`([a-z_]+)\(([a-z0-9_,\s]*)\)`")
SHARED_WORDS = 6
"""So many words in a row, the same in a skill and in a checkpoint, would be a quotation."""


def parts(path: Path) -> tuple[dict[str, object], str]:
    """Front matter and body."""
    _, head, body = path.read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def test_there_is_a_skill_for_every_stage() -> None:
    assert set(NAMES) == STAGES


@pytest.mark.parametrize("path", SKILLS, ids=NAMES)
def test_the_front_matter_is_that_of_agent_skills(path: Path) -> None:
    head, body = parts(path)
    assert set(head) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert head["name"] == path.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(head["name"])) and len(str(head["name"])) <= 64
    assert isinstance(head["description"], str) and 40 <= len(head["description"]) <= 1024
    assert 5 <= len(body.strip().splitlines()) <= 45
    assert len(body) < 5000


@pytest.mark.parametrize("path", SKILLS, ids=NAMES)
def test_every_call_a_skill_shows_is_one_the_registry_takes(path: Path) -> None:
    _, body = parts(path)
    calls = CALL.findall(body)
    assert calls
    for tool, arguments in calls:
        assert tool in TOOLS, tool
        named = {name for name in re.split(r"[,\s]+", arguments) if name}
        assert named <= fields(TOOLS[tool].args_model()), (tool, named)
        required = {
            name for name, field in TOOLS[tool].args_model().model_fields.items() if field.is_required()
        }
        assert required <= named, (tool, required - named)


def known_names() -> set[str]:
    """Every name of the tools, their arguments and results, the documents, and the files of a workspace."""
    known = set(TOOLS) | set(CALL_FIELDS) | set(DOCUMENTS) | {"output_dir", "prob_", "ok"}
    for tool in TOOLS.values():
        known |= fields(tool.args_model()) | fields(tool.result_model())
    for model in DOCUMENTS.values():
        known |= fields(model)
    return known | set(load_registry(REPOSITORY / "config" / "encoders.yaml"))


@pytest.mark.parametrize("path", SKILLS, ids=NAMES)
def test_every_name_in_code_type_exists(path: Path) -> None:
    _, body = parts(path)
    for code in re.findall(r"`([^`]+)`", CALL.sub("", body)):
        if re.fullmatch(r"[a-z0-9_]+", code):
            assert code in known_names(), code
        elif re.fullmatch(r"[A-Za-z0-9_./]+\.(json|jsonl|csv|md|yaml|pt)", code):
            assert known_file(code), code
        else:
            assert code in {"--step", "--round", '"cache": "hit"', "data/", "reflection/round_k/"}, code


def known_file(name: str) -> bool:
    """A file that a workspace starts with, that a tool writes, or that an agent is asked for."""
    given = {"TASK.md", "task.json", "registry.json", "memory/group_memory.jsonl"}
    given |= {f"schemas/{schema}.schema.json" for schema in DOCUMENTS}
    written = {"slide_manifest.csv", "quality_report.csv", "features_index.csv", "config.yaml", "model.pt",
               "splits.csv", "history.csv", "predictions.csv"}  # fmt: skip
    rounds = {"critique.json", "update.json", "config_diff.json", "summary.json"}
    return name in given | written | rounds | set(EXPECTED_OUTPUTS)


def test_tools_that_no_skill_explains_are_found() -> None:
    shown = {tool for path in SKILLS for tool, _ in CALL.findall(parts(path)[1])}
    assert shown == set(TOOLS)


def shingles(text: str, n_words: int) -> set[tuple[str, ...]]:
    """Every run of ``n_words`` words, without case and punctuation."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[start : start + n_words]) for start in range(len(words) - n_words + 1)}


def test_skills_and_task_text_quote_no_checkpoint() -> None:
    rubric = load_rubric(REPOSITORY / "tasks" / "rubric.yaml")
    guidance = {path.parent.name: parts(path)[1] + str(parts(path)[0]["description"]) for path in SKILLS}
    task = load_task(DEMO / "demo_pleomorphism.yaml")
    guidance["TASK.md"] = task_text(
        task, label_access="heldout", test_evaluations=1, harness="codex", memory=True
    )
    checks = {checkpoint.id: shingles(checkpoint.text, SHARED_WORDS) for checkpoint in rubric.checkpoints}
    quoted = {
        (name, item): " ".join(min(shared))
        for name, text in guidance.items()
        for item, check in checks.items()
        if (shared := shingles(text, SHARED_WORDS) & check)
    }
    assert quoted == {}


def test_the_quotation_test_would_find_one() -> None:
    rubric = load_rubric(REPOSITORY / "tasks" / "rubric.yaml")
    checkpoint = max(rubric.checkpoints, key=lambda one: len(one.text))
    skill = f"Remember: {checkpoint.text.upper()}!"
    assert shingles(skill, SHARED_WORDS) & shingles(checkpoint.text, SHARED_WORDS)


def test_the_brief_a_skill_points_to_has_what_it_says() -> None:
    assert "test_evaluations" in TaskBrief.model_fields

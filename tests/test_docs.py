"""What the documents say must exist, and what exists must be said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from acpbench.adjudication.audit import read_audit_records
from acpbench.core import config, groups
from acpbench.core.config import parse_study
from acpbench.features.registry import EncoderSpec
from acpbench.harness.registry import TOOLS
from acpbench.mil.train import MilSettings
from acpbench.rubric.catalogue import load_rubric

SECTIONS = {
    "A study": config.StudyConfig,
    "`cohorts.<name>`": config.Cohort,
    "`cohorts.<name>.columns`": config.CohortColumns,
    "`tasks.<id>`": config.TaskBinding,
    "`tiling`": config.Tiling,
    "`trajectories`": config.Trajectories,
    "`trajectories.vision`": config.Vision,
    "`groups.yaml`: scripted": groups.ScriptedGroup,
    "`groups.yaml`: claude_code": groups.ClaudeCodeGroup,
    "`groups.yaml`: codex": groups.CodexGroup,
    "`groups.yaml`: opencode": groups.OpenCodeGroup,
    "`groups.yaml`: limits": groups.Limits,
    "`groups.yaml`: sandbox": groups.Sandbox,
    "`groups.yaml`: claude_code.provider": groups.ClaudeCodeProvider,
    "`groups.yaml`: codex.provider": groups.CodexProvider,
    "`groups.yaml`: opencode.provider": groups.OpenCodeProvider,
    "`mil`": MilSettings,
    "`encoders.yaml`: `<encoder>`": EncoderSpec,
}
"""Section of ``config/README.md`` → the model whose keys its table explains."""


def models_within(model: type[BaseModel]) -> set[type[BaseModel]]:
    """A model and every model that its fields hold, at any depth."""
    found, waiting = {model}, list(model.model_fields.values())
    types = [field.annotation for field in waiting]
    while types:
        kind = types.pop()
        types.extend(get_args(kind))
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
            found.add(kind)
            types.extend(field.annotation for field in kind.model_fields.values())
    return found


def section(text: str, title: str) -> str:
    """The text under a second-level heading."""
    (body,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return body


def documented(text: str, title: str) -> dict[str, str]:
    """Key → default cell of a section's table."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section(text, title), re.MULTILINE))


def default_cell(field: Any) -> str:
    """The default of a field as the table shows it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "see below" if isinstance(value, BaseModel) else f"`{value!r}`"


def fenced(path: Path, language: str) -> list[str]:
    """Fenced blocks of a language in a page."""
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def pages(repository: Path) -> list[Path]:
    """Every page of documentation."""
    folders = ["", "config/", "docs/", "docs/decisions/", "results/", "reviews/", "profiles/"]
    return [page for folder in folders for page in sorted(repository.glob(f"{folder}*.md"))]


def test_every_model_of_the_configuration_has_its_section() -> None:
    assert models_within(config.StudyConfig) | models_within(groups.GroupsFile) <= set(SECTIONS.values()) | {
        groups.GroupsFile,
        groups.Group,
    }


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_explained_with_its_default(repository: Path, title: str) -> None:
    fields = SECTIONS[title].model_fields
    given_by_the_file = {"id"} if SECTIONS[title] is EncoderSpec else set()
    expected = {name: default_cell(field) for name, field in fields.items() if name not in given_by_the_file}
    assert documented((repository / "config" / "README.md").read_text(), title) == expected


def test_links_resolve(repository: Path) -> None:
    broken = []
    for page in pages(repository):
        for target in re.findall(r"\]\(([^)#:\s]+)[^):\s]*\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(repository)}: {target}")
    assert broken == []
    assert len(pages(repository)) >= 20


def test_the_readme_keeps_its_order(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    named = ["Can an agentic harness", "make demo", "make test", "docs/images/report.png"]
    headings = ["Your own slides", "Your own agents", "What is scored", "What is in results/", "Commands"]
    headings += ["What to keep in mind", "Limits", "Licence and citation"]
    places = [text.index(part) for part in named + [f"## {heading}\n" for heading in headings]]
    assert places == sorted(places)


def test_the_readme_examples_are_valid(repository: Path) -> None:
    study_text, groups_text = fenced(repository / "README.md", "yaml")
    study = parse_study(yaml.safe_load(study_text), "README.md")
    assert study.tasks["luad_vs_lusc"].classes == ["LUAD", "LUSC"]
    assert study.trajectories.groups == []
    shown = {name: groups.parse_group(row) for name, row in yaml.safe_load(groups_text)["groups"].items()}
    real = config.load_groups(repository / "config" / "groups.yaml")
    scripted = {name: group for name, group in shown.items() if group.harness == "scripted"}
    assert scripted
    for name, group in scripted.items():
        assert (group.label, group.policy) == (real[name].label, real[name].policy)
    assert {group.harness for group in shown.values()} == {"scripted", "claude_code"}


def test_counts_in_the_text_are_those_of_the_files(repository: Path) -> None:
    demo = config.load_study(repository / "config" / "config.yaml")
    n_runs = len(demo.trajectories.groups) * len(demo.agent_tasks) * demo.trajectories.replicates
    assert f"{n_runs} recorded runs" in (repository / "README.md").read_text()
    checkpoints = load_rubric(repository / "tasks" / "rubric.yaml").checkpoints
    semantic = sum(checkpoint.kind == "semantic" for checkpoint in checkpoints)
    said = (
        f"{len(checkpoints)} checkpoint definitions in `tasks/rubric.yaml`, "
        f"{len(checkpoints) - semantic} are deterministic rules and {semantic} are semantic"
    )
    assert said in " ".join((repository / "docs" / "judge.md").read_text().split())


def test_the_tool_table_is_the_registry(repository: Path) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (yes|no) \|", (repository / "docs" / "tools.md").read_text(), re.MULTILINE
    )
    assert rows == [(tool.id, tool.role, "yes" if tool.read_only else "no") for tool in TOOLS.values()]


def test_the_audit_example_is_a_record(repository: Path, tmp_path: Path) -> None:
    (example,) = fenced(repository / "docs" / "howto-audit.md", "json")
    reviewer = json.loads(example)["reviewer"]
    (tmp_path / f"{reviewer}.jsonl").write_text(example)
    (record,) = read_audit_records(tmp_path)
    assert (record.status, record.reviewer) == ("PASS", reviewer)
    items = {checkpoint.id for checkpoint in load_rubric(repository / "tasks" / "rubric.yaml").checkpoints}
    assert record.checkpoint in items


def test_decisions_are_numbered_and_short(repository: Path) -> None:
    found = sorted((repository / "docs" / "decisions").glob("*.md"))
    assert [path.name[:3] for path in found] == [f"{number:03d}" for number in range(1, len(found) + 1)]
    for path in found:
        text = path.read_text()
        assert text.startswith(f"# {path.name[:3]} ") and len(text.splitlines()) <= 25
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, path.name


def test_every_example_study_is_valid(repository: Path) -> None:
    examples = sorted((repository / "config" / "examples").glob("*.yaml"))
    studies = {path.stem: config.load_study(path) for path in examples}
    own = studies["own_slides"]
    assert own.trajectories.groups == []
    assert {name: binding.resolved_output_type for name, binding in own.tasks.items()} == {
        "tumour_vs_normal": "binary",
        "luad_vs_lusc": "binary",
    }
    assert set(own.tasks["tumour_vs_normal"].label_map.values()) == {"normal", "tumour"}


def test_the_benchmark_configuration_binds_every_task(repository: Path) -> None:
    study = config.load_study(repository / "config" / "paper.yaml")
    defined = {path.stem for path in (repository / "tasks").glob("*.yaml")} - {"requirements", "rubric"}
    assert set(study.agent_tasks) == defined
    assert len(defined) == 41
    for name, binding in study.tasks.items():
        task = yaml.safe_load((repository / binding.definition).read_text())
        assert task["task_id"] == name
        assert (task["output_type"] == "survival") == (binding.time_column is not None), name


def test_every_field_failure_has_tests_that_exist(repository: Path) -> None:
    rows = re.findall(
        r"^\| (\d+) \| .* \| (.*?) \|$", (repository / "docs" / "field-failures.md").read_text(), re.MULTILINE
    )
    assert [int(number) for number, _ in rows] == list(range(1, 43))
    missing = []
    for number, cell in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
        assert named, number
        for file, name in named:
            path = repository / "tests" / file
            if not path.is_file() or f"def {name}(" not in path.read_text():
                missing.append(f"{number}: {file}::{name}")
    assert missing == []

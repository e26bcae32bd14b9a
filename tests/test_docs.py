"""What the documents say must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from acpbench.core import config
from acpbench.core.config import parse_study

MODELS = [config.StudyConfig, config.Cohort, config.CohortColumns, config.TaskBinding, config.Tiling,
          config.Trajectories, config.Group]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_is_documented(repository: Path, model: type) -> None:
    text = (repository / "config" / "README.md").read_text()
    assert [name for name in model.model_fields if f"`{name}`" not in text] == []


def test_links_resolve(repository: Path) -> None:
    broken = []
    for page in [*repository.glob("*.md"), *repository.glob("*/*.md"), *repository.glob("docs/*/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(repository)}: {target}")
    assert broken == []


def test_the_readme_example_is_valid_and_the_commands_are_named(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    study = parse_study(yaml.safe_load(example), "README.md")
    assert study.tasks["luad_vs_lusc"].classes == ["LUAD", "LUSC"]
    named = ("Can an agentic harness", "make demo", "make test", "docs/images/report.png")
    order = [text.index(part) for part in (*named, "## Your own slides", "## Your own agents")]
    assert order == sorted(order)


def test_the_benchmark_configuration_binds_every_task(repository: Path) -> None:
    study = config.load_study(repository / "config" / "benchmark.yaml")
    assert len(study.agent_tasks) == 41
    assert all((repository / binding.definition).is_file() for binding in study.tasks.values())

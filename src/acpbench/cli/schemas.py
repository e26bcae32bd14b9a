"""``acp-bench schemas``: JSON Schemas of the files people and agents write, generated from the models."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import click

from acpbench.core.errors import InputError
from acpbench.core.files import write_text

SCHEMAS: dict[str, str] = {
    "config": "acpbench.core.config:StudyConfig",
    "config_diff": "acpbench.trajectory.documents:ConfigDiff",
    "critique": "acpbench.trajectory.documents:Critique",
    "encoder": "acpbench.features.registry:EncoderSpec",
    "execution_memory": "acpbench.trajectory.documents:MemoryEntry",
    "group": "acpbench.core.config:Group",
    "metrics": "acpbench.trajectory.documents:Metrics",
    "predictions": "acpbench.trajectory.documents:PredictionRow",
    "reflection_summary": "acpbench.trajectory.documents:ReflectionSummary",
    "report": "acpbench.trajectory.documents:Report",
    "requirements": "acpbench.tasks.requirements:Requirements",
    "round_summary": "acpbench.trajectory.documents:RoundSummary",
    "rubric": "acpbench.rubric.models:Rubric",
    "run": "acpbench.trajectory.record:RunRecord",
    "task": "acpbench.tasks.models:Task",
    "task_brief": "acpbench.trajectory.documents:TaskBrief",
    "update": "acpbench.trajectory.documents:Update",
    "workflow_spec": "acpbench.trajectory.documents:WorkflowSpec",
}
"""Name of the schema file (``<name>.schema.json``) → the pydantic model it is generated from."""

SUFFIX = ".schema.json"


def json_schema(name: str) -> dict[str, Any]:
    """Generate the JSON Schema (draft 2020-12) of one entry of :data:`SCHEMAS`."""
    module, _, attribute = SCHEMAS[name].partition(":")
    model = getattr(importlib.import_module(module), attribute)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(by_alias=True),
    }


def schema_text(name: str) -> str:
    """The bytes of one schema file, the same on every machine."""
    return json.dumps(json_schema(name), indent=2, ensure_ascii=False) + "\n"


def differing(directory: Path) -> list[str]:
    """Name the schemas in ``directory`` that are missing, out of date or no longer generated, sorted."""
    on_disk = {path.name.removesuffix(SUFFIX): path for path in directory.glob(f"*{SUFFIX}")}
    return sorted(
        name
        for name in {*SCHEMAS, *on_disk}
        if name not in SCHEMAS
        or name not in on_disk
        or on_disk[name].read_text(encoding="utf-8") != schema_text(name)
    )


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 and name the files that differ.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("workflow/schemas"),
    show_default=True,
    help="Folder of the schema files.",
)
def schemas(check: bool, output: Path) -> None:
    """Write or check the generated JSON Schemas."""
    if check:
        if not output.is_dir():
            raise InputError("folder of schemas does not exist", file=output)
        names = differing(output)
        for name in names:
            click.echo(
                f"{output / (name + SUFFIX)}: differs from the models; run acp-bench schemas", err=True
            )
        if names:
            raise SystemExit(1)
        click.echo(f"{len(SCHEMAS)} schemas agree with the models")
        return
    for name in sorted(SCHEMAS):
        write_text(output / (name + SUFFIX), schema_text(name))
    click.echo(f"wrote {len(SCHEMAS)} schemas to {output}")

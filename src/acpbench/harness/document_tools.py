"""Tools that check what the agent wrote: tables, the workflow specification, the structured report."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_csv, read_json, read_jsonl
from acpbench.harness import registry
from acpbench.harness.context import RunContext
from acpbench.harness.tool_args import ReadTable, ValidateReport, ValidateSchema, ValidateSpec
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import (
    Column,
    ReadTableResult,
    ValidateReportResult,
    ValidateSchemaResult,
    ValidateSpecResult,
)
from acpbench.trajectory.documents import DOCUMENTS, GIVEN_FILES, GIVEN_FOLDERS, Report, WorkflowSpec

MAX_PROBLEMS = 10
MAX_CELL_CHARS = 500


def _number(text: str) -> float | None:
    """A finite number, or None: JSON, in which tools answer, has no other."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_table(context: RunContext, args: ReadTable) -> ToolOutcome:
    """Rows, columns, missing cells, numeric ranges and the first rows of a CSV."""
    rows = read_csv(context.read_path(args.path))
    columns: dict[str, Column] = {}
    for name in rows[0] if rows else []:
        values = [row[name] for row in rows]
        filled = [value for value in values if value != ""]
        numbers = [number for number in map(_number, filled) if number is not None]
        numeric = bool(numbers) and len(numbers) == len(filled)
        columns[name] = Column(
            missing=len(values) - len(filled),
            distinct=len(set(filled)),
            min=min(numbers) if numeric else None,
            max=max(numbers) if numeric else None,
        )
    head = [{name: value[:MAX_CELL_CHARS] for name, value in row.items()} for row in rows[: args.n_rows]]
    return ToolOutcome([], ReadTableResult(n_rows=len(rows), columns=columns, head=head))


def validate_schema(context: RunContext, args: ValidateSchema) -> ToolOutcome:
    """Any document, table or JSON Lines file against the schema of that name; all problems in one error."""
    path = context.read_path(args.path)
    model = DOCUMENTS[args.schema_name]
    if args.schema_name == "predictions":
        records: list[Any] = read_csv(path)
        label = "row"
    elif args.schema_name == "execution_memory":
        records, label = read_jsonl(path), "line"
    else:
        records, label = [read_json(path)], ""
    if not records:
        raise InputError("holds no record", file=args.path)
    problems: list[str] = []
    for number, record in enumerate(records, start=2 if label == "row" else 1):
        try:
            model.model_validate(record)
        except ValidationError as error:
            where = f"{label} {number} " if label else ""
            problems += [_problem(where, item) for item in error.errors(include_url=False)]
    if problems:
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise InputError("; ".join(problems[:MAX_PROBLEMS]) + more, file=args.path, field=args.schema_name)
    return ToolOutcome(
        [], ValidateSchemaResult(valid=True, schema_name=args.schema_name, n_records=len(records))
    )


def _problem(where: str, item: Any) -> str:
    field = ".".join(str(part) for part in item["loc"])[:80] or "(root)"
    return f"{where}{field}: {item['msg']} (got {item['input']!r:.60})"


def graph_problems(spec: WorkflowSpec) -> list[str]:
    """What is wrong with a step graph: repeated ids, unknown inputs, cycles (empty list = sound)."""
    problems = []
    ids = [step.id for step in spec.steps]
    if len(set(ids)) != len(ids):
        problems.append("step ids repeat")
    producer = {output: step.id for step in spec.steps for output in step.outputs}
    needs: dict[str, set[str]] = {step.id: set() for step in spec.steps}
    for step in spec.steps:
        for path in step.inputs:
            if path in producer:
                needs[step.id].add(producer[path])
            elif not (path.startswith(GIVEN_FOLDERS) or path in GIVEN_FILES):
                problems.append(f"input {path} of step {step.id} is made by no step")
    done: set[str] = set()
    while ready := [step for step in needs if step not in done and needs[step] <= done]:
        done.update(ready)
    if len(done) < len(needs):
        problems.append(f"steps {', '.join(sorted(set(needs) - done))} form a cycle")
    return problems


def validate_spec(context: RunContext, args: ValidateSpec) -> ToolOutcome:
    """Schema, tool ids and graph of a workflow specification; a problem is an error naming the field."""
    try:
        spec = WorkflowSpec.model_validate(read_json(context.read_path(args.path)))
    except ValidationError as error:
        raise describe_validation(error, args.path) from None
    for index, step in enumerate(spec.steps):
        if step.tool not in registry.TOOLS:
            raise InputError(
                f"{step.tool!r} is not a tool of the registry; it has {', '.join(registry.TOOLS)}",
                file=args.path,
                field=f"steps.{index}.tool",
            )
    if problems := graph_problems(spec):
        raise InputError("; ".join(problems), file=args.path, field="steps")
    return ToolOutcome([], ValidateSpecResult(valid=True, n_steps=len(spec.steps)))


def validate_report(context: RunContext, args: ValidateReport) -> ToolOutcome:
    """Schema, cited files and headline of a structured report; a problem is an error naming the field."""
    try:
        report = Report.model_validate(read_json(context.read_path(args.path)))
    except ValidationError as error:
        raise describe_validation(error, args.path) from None
    if report.claim_boundary_type != context.task.claim_boundary_type:
        raise InputError(
            f"expected {context.task.claim_boundary_type!r}", file=args.path, field="claim_boundary_type"
        )
    cited = [*report.artifacts, *(path for claim in report.claims for path in claim.evidence)]
    for path in cited:
        if not context.path(path.split("#", 1)[0]).exists():
            raise InputError(f"cites {path}, which does not exist", file=args.path, field="artifacts")
    if report.headline is not None:
        metrics = read_json(context.read_path(report.headline.file)).get("metrics", {})
        found, value = metrics.get(report.headline.metric), report.headline.value
        # A metric that is undefined in its file (null) is rightly reported as null.
        undefined = report.headline.metric in metrics and found is None and value is None
        if not undefined and (found is None or value is None or abs(found - value) > 5e-4):
            raise InputError(
                f"headline {value} differs from {found} in {report.headline.file}",
                file=args.path,
                field="headline.value",
            )
    return ToolOutcome(
        [], ValidateReportResult(valid=True, n_claims=len(report.claims), n_files_cited=len(cited))
    )

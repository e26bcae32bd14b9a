"""The typed registry of pathology tools, and the witnessed call.

Each tool is one function on typed arguments. Whatever serves it (command line today), the call is logged
here, outside the agent's reach: arguments, inputs with hashes, start, end, outcome, outputs with hashes.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import sha256_file, sha256_json
from acpbench.harness.context import RunContext
from acpbench.trajectory.documents import Role
from acpbench.trajectory.record import iso_time


class ToolArgs(BaseModel):
    """Base of all tool arguments. ``input_fields`` name the fields that are workspace files read by the call."""

    model_config = ConfigDict(extra="forbid")
    input_fields: ClassVar[tuple[str, ...]] = ()


class ToolOutcome(NamedTuple):
    """What a tool did. ``outputs`` are workspace paths, or ``store:`` keys of shared artifacts."""

    outputs: list[str]
    result: dict[str, Any]
    cache: Literal["hit", "miss"] | None = None
    stored: tuple[dict[str, Any], ...] = ()


class Tool(NamedTuple):
    """One registry entry. ``target`` is ``module:function``; ``args`` is ``module:class`` (imported on use)."""

    id: str
    role: Role
    read_only: bool
    target: str
    args: str
    description: str

    def args_model(self) -> type[ToolArgs]:
        """The typed arguments."""
        return _load(self.args)

    def function(self) -> Callable[[RunContext, Any], ToolOutcome]:
        """The library function behind the tool."""
        return _load(self.target)


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


_ARGS = "acpbench.harness.tool_args"
_SLIDES = "acpbench.harness.slide_tools"
_MODELS = "acpbench.harness.model_tools"
_EVALUATION = "acpbench.harness.evaluation_tools"
_DOCUMENTS = "acpbench.harness.document_tools"

TOOLS: dict[str, Tool] = {
    tool.id: tool
    for tool in [
        Tool(
            "inspect_slides",
            "slide_processing",
            False,
            f"{_SLIDES}:inspect_slides",
            f"{_ARGS}:InspectSlides",
            "Open every slide of the cohort, report spacing, size, tissue and quality status, and write "
            "slide_manifest.csv with a keep or drop reason for each slide.",
        ),
        Tool(
            "tile_slides",
            "slide_processing",
            False,
            f"{_SLIDES}:tile_slides",
            f"{_ARGS}:TileSlides",
            "Lay a tile grid of a given spacing (micrometres per pixel) and size over the tissue of every usable "
            "slide and write tiles_index.csv.",
        ),
        Tool(
            "extract_features",
            "feature_extraction",
            False,
            f"{_SLIDES}:extract_features",
            f"{_ARGS}:ExtractFeatures",
            "Embed the tiles of every usable slide with a registered encoder and write features_index.csv.",
        ),
        Tool(
            "train_mil",
            "model",
            False,
            f"{_MODELS}:train_mil",
            f"{_ARGS}:TrainMil",
            "Train an attention-based multiple-instance model on the training patients (early stopping on an "
            "inner part of them) and write config.yaml, model.pt, splits.csv, history.csv and predictions.csv for "
            "validation and test patients.",
        ),
        Tool(
            "evaluate_predictions",
            "evaluation",
            False,
            f"{_EVALUATION}:evaluate_predictions",
            f"{_ARGS}:EvaluatePredictions",
            "Compute the task's metrics with patient-level bootstrap intervals on the validation rows of a "
            "predictions table and write metrics.json.",
        ),
        Tool(
            "evaluate_test",
            "evaluation",
            True,
            f"{_EVALUATION}:evaluate_test",
            f"{_ARGS}:EvaluateTest",
            "Ask the evaluator for the test metrics of a predictions table. Answers with metrics and a receipt, "
            "never with labels; the number of calls is limited.",
        ),
        Tool(
            "render_attention",
            "report",
            False,
            f"{_MODELS}:render_attention",
            f"{_ARGS}:RenderAttention",
            "Draw a trained model's attention over one slide's thumbnail.",
        ),
        Tool(
            "read_table",
            "verification",
            True,
            f"{_DOCUMENTS}:read_table",
            f"{_ARGS}:ReadTable",
            "Summarise a CSV table of the workspace: rows, columns, missing values, ranges, first rows.",
        ),
        Tool(
            "validate_spec",
            "verification",
            True,
            f"{_DOCUMENTS}:validate_spec",
            f"{_ARGS}:ValidateDocument",
            "Check a workflow specification: schema, tool ids, graph.",
        ),
        Tool(
            "validate_report",
            "report",
            True,
            f"{_DOCUMENTS}:validate_report",
            f"{_ARGS}:ValidateDocument",
            "Check a structured report: schema, that each cited file exists, that the headline equals its file.",
        ),
    ]
}


def registry_document() -> dict[str, Any]:
    """The registry as agents see it (``registry.json``)."""
    return {
        "schema": "acp-registry/0.1",
        "tools": [
            {
                "id": tool.id,
                "role": tool.role,
                "read_only": tool.read_only,
                "description": tool.description,
                "args_schema": tool.args_model().model_json_schema(),
            }
            for tool in TOOLS.values()
        ],
    }


def registry_digest() -> str:
    """Hash of the registry document."""
    return sha256_json(registry_document())


def _append(log: Path, make_row: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Append one row under a lock, flushed and fsynced; ``make_row`` gets the row's sequence number."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        row = make_row(handle.read().count(b"\n") + 1)
        handle.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        handle.flush()
        os.fsync(handle.fileno())
    return row


def _hashed(context: RunContext, relative: str) -> dict[str, Any]:
    path = context.path(relative)
    if not path.is_file():
        return {"path": relative, "sha256": None, "size": None}
    return {"path": relative, "sha256": sha256_file(path), "size": path.stat().st_size}


def _without_roots(context: RunContext, message: str) -> str:
    """An error message in the agent's terms: no path of the evaluator's machine."""
    message = message.replace(f"{context.workspace}/", "").replace(str(context.workspace), "workspace")
    for root in (context.store_dir, context.features_dir, context.slides_dir, context.slides_base):
        message = message.replace(f"{root}/", "store:").replace(str(root), "store:")
    for file in (
        context.labels,
        context.slides_csv,
        context.exclusions_csv,
        context.encoders_config,
        context.task_file,
        context.tool_log,
        context.receipts,
    ):
        message = message.replace(str(file), f"evaluator:{file.name}")
    return message


def call_tool(
    context: RunContext,
    tool_id: str,
    args: dict[str, Any],
    *,
    step_id: str | None = None,
    round_id: int | None = None,
) -> dict[str, Any]:
    """Run one tool and witness it. Returns the ``end`` row of the log.

    A failing tool is a row with ``exit_status: error`` and a message to repair from, not an exception.

    Raises:
        InputError: the tool is unknown (logged as well).
    """
    tool = TOOLS.get(tool_id)
    given: ToolArgs | None = None
    problem: InputError | None = None
    if tool is None:
        problem = InputError(f"unknown tool {tool_id!r}; the registry has {', '.join(TOOLS)}")
    else:
        try:
            given = tool.args_model().model_validate(args)
        except ValidationError as error:
            problem = describe_validation(error, f"{tool_id} arguments")

    inputs = []
    if given is not None:
        for field in given.input_fields:
            try:
                inputs.append(_hashed(context, getattr(given, field)))
            except InputError as error:
                problem = problem or error
    start_s = time.time()
    start = _append(
        context.tool_log,
        lambda seq: {
            "event": "start",
            "seq": seq,
            "call_id": f"c{seq:04d}",
            "tool": tool_id,
            "args": args,
            "step_id": step_id,
            "round_id": round_id,
            "t": iso_time(start_s),
            "inputs": inputs,
        },
    )

    outcome, error_text = None, None
    if problem is not None:
        error_text = str(problem)
    else:
        try:
            outcome = tool.function()(context, given)
        except InputError as error:
            error_text = str(error)
        except Exception as error:  # any tool failure is a recorded fact of the run, whatever its type
            # Paths go before the text is cut: half a path would no longer be recognised as one.
            told = _without_roots(context, " ".join(str(error).split()))
            error_text = f"{type(error).__name__}: {told[:400]}"
    end_s = time.time()
    return _append(
        context.tool_log,
        lambda seq: {
            "event": "end",
            "seq": seq,
            "call_id": start["call_id"],
            "tool": tool_id,
            "exit_status": "error" if outcome is None else "ok",
            "t": iso_time(end_s),
            "duration_s": round(end_s - start_s, 3),
            "outputs": []
            if outcome is None
            else [_hashed(context, path) for path in outcome.outputs] + list(outcome.stored),
            "cache": None if outcome is None else outcome.cache,
            "error": None if error_text is None else _without_roots(context, error_text),
            "result": {} if outcome is None else outcome.result,
        },
    )

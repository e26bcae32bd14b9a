"""What the tool registry knows and the agent does not: where slides, features, labels and the log are.

The context file lies outside the workspace. A tool process finds it through ``ACPBENCH_RUN_CONTEXT``.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import inside, read_csv, read_json
from acpbench.harness.call_files import CallFiles
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task

CONTEXT_VARIABLE = "ACPBENCH_RUN_CONTEXT"


class TilerSettings(BaseModel):
    """The study's tile grid: the one whose tiles and features already exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    spacing_um: float
    tile_size_px: int
    min_tissue: float


class VisionEndpoint(BaseModel):
    """A vision-language model behind OpenAI-compatible chat; the key by the name of its variable only."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_url: str = Field(pattern=r"^https?://", description="Address up to and without /chat/completions.")
    model: str
    api_key_env: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*$", description="Variable with the key.")
    timeout_s: float = Field(120, gt=0, le=3600)
    max_tokens: int = Field(500, ge=1, le=8192)


class EvaluatorSide(BaseModel):
    """What a run is given on the evaluator's side: files of the study, and the rules of label access."""

    model_config = ConfigDict(extra="forbid", ignored_types=(cached_property,))
    task_file: Path
    labels: Path
    slides_csv: Path
    exclusions_csv: Path
    slides_base: Path
    slides_dir: Path
    features_dir: Path
    store_dir: Path
    encoders_config: Path
    tiler: TilerSettings
    label_column: str
    label_access: Literal["heldout", "open"] = "heldout"
    test_evaluations: int = 1
    offline: bool = True
    seed: int = 0
    vision: VisionEndpoint | None = None

    def shared(self) -> dict[str, Any]:
        """The fields of this class by name, paths made absolute."""
        values = {name: getattr(self, name) for name in EvaluatorSide.model_fields}
        return {name: value.resolve() if isinstance(value, Path) else value for name, value in values.items()}


class RunContext(EvaluatorSide):
    """Evaluator-side facts of one run as its tools need them. All paths are absolute."""

    trajectory_id: str
    workspace: Path
    tool_log: Path
    receipts: Path
    split_id: str
    _files: CallFiles | None = PrivateAttr(None)

    @cached_property
    def task(self) -> Task:
        """The task as the benchmark defines it (not the agent's copy)."""
        return load_task(self.task_file)

    def path(self, relative: str) -> Path:
        """A path inside the workspace. Raises :class:`InputError` when it would leave it."""
        return inside(self.workspace, relative)

    def in_call(self, files: CallFiles) -> RunContext:
        """The same context for the time of one call, with that call's files."""
        copy = self.model_copy()
        copy._files = files
        return copy

    def read_path(self, relative: str) -> Path:
        """Where a tool reads a workspace file: within a call, the copy made when the call began.

        Raises:
            InputError: the path leaves the workspace; within a call also a missing file.
        """
        return self.path(relative) if self._files is None else self._files.take(relative)

    def write_path(self, relative: str) -> Path:
        """Where a tool writes a workspace file: within a call, a place out of the agent's reach.

        The file comes into the workspace when the call has gone well.

        Raises:
            InputError: the path leaves the workspace.
        """
        return self.path(relative) if self._files is None else self._files.make(relative)

    def stored(self, key: str) -> Path:
        """File behind a ``store:`` key: features of the reference pipeline, or of this study's runs.

        Raises:
            InputError: not a store key, or one that leaves the store.
        """
        roots = {"reference": self.features_dir, "runs": self.store_dir}
        shelf, _, relative = key.removeprefix("store:").partition("/")
        if not key.startswith("store:") or shelf not in roots:
            raise InputError(f"{key[:80]!r} is not a store key (store:reference/... or store:runs/...)")
        return inside(roots[shelf], relative)

    def slide_rows(self) -> list[dict[str, str]]:
        """Usable slides of the task with their split: rows of the label table joined to the cohort table."""
        slides = {row["slide_id"]: row for row in read_csv(self.slides_csv)}
        return [slides[row["slide_id"]] | row for row in read_csv(self.labels) if row["slide_id"] in slides]


def load_context(path: str | os.PathLike[str] | None = None) -> RunContext:
    """Read the context named by ``path`` or by the environment.

    Raises:
        InputError: there is none, or it does not fit.
    """
    named = path or os.environ.get(CONTEXT_VARIABLE)
    if not named:
        raise InputError(
            f"no run context: tools run inside a recorded workspace ({CONTEXT_VARIABLE} is not set)"
        )
    value: Any = read_json(named)
    try:
        return RunContext.model_validate(value)
    except ValidationError as error:
        raise describe_validation(error, named) from None

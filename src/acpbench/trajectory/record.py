"""The immutable record of one run: ``run.json`` and the workspace manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_csv, read_json, sha256_file, sha256_json, walk_files, write_csv
from acpbench.mil.splits import split_id

RunStatus = Literal[
    "completed",
    "agent_error",
    "timeout",
    "budget",
    "refused",
    "killed",
    "incomplete_stream",
    "infra_error",
]
MANIFEST_COLUMNS = ["path", "size", "sha256", "mtime"]


class Harness(BaseModel):
    """The orchestration stack that ran: family, version and, for the built-in one, its policy."""

    model_config = ConfigDict(extra="forbid")
    name: str
    version: str
    policy: str | None = None


class Digests(BaseModel):
    """SHA-256 of what the run was given; null where nobody recorded it (the first four: imported runs only).

    ``tool_list``: the tools as the harness was offered them. ``harness_config``: command, settings and
    variables of the harness, without values of secrets. ``memory``: the execution memory that the run was
    given.
    """

    model_config = ConfigDict(extra="forbid")
    task: str | None
    skills: str | None
    tools: str | None
    workspace_initial: str | None
    split: str | None = None
    tool_list: str | None = None
    harness_config: str | None = None
    memory: str | None = None


class Isolation(BaseModel):
    """What stood between agent and machine, and what of the network the agent could reach."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["bubblewrap", "command", "none"]
    network: Literal["none", "loopback", "model_only", "host"]
    version: str | None = None


class ImportSource(BaseModel):
    """Where an imported record comes from, and what its importer could and could not read.

    ``kept``: events with a name; ``unknown``: raw kind → entries without one; ``malformed``: entries that
    hold no readable event; ``folded``: entries whose content another event carries. ``sha256`` is of the
    source's bytes (of each file, joined in order of name, when sub-agents' files belong to it).
    """

    model_config = ConfigDict(extra="forbid")
    file_name: str
    source_format: str
    sha256: str
    size_bytes: int = Field(ge=0)
    importer_version: str
    sample: str | None = None
    subagent_files: list[str] = []
    lines: int = Field(ge=0)
    kept: int = Field(ge=0)
    unknown: dict[str, int] = {}
    malformed: int = Field(ge=0)
    folded: dict[str, int] = {}
    shortened: int = Field(0, ge=0)
    problems: list[str] = []


class RunRecord(BaseModel):
    """``run.json``: how the run went. Its grade and its score are other facts, kept in other files.

    Times are ISO 8601 UTC; ``wall_s`` is seconds. ``cost_usd`` is null when unknown, never 0. ``imported`` is
    set for a record that another program made: only there may times, digests, seed and label access be
    unknown. ``watchdog`` names the limit that ended the run; ``notes`` say what else the collector saw.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    schema_: Literal["acp-run/0.1"] = Field("acp-run/0.1", alias="schema")
    trajectory_id: str
    group: str
    task_id: str
    replicate: str
    attempt: int = Field(ge=1)
    harness: Harness
    model: dict[str, Any] | None = None
    label_access: Literal["heldout", "open", "unknown"]
    run_status: RunStatus
    status_reason: str
    exit_code: int | None = None
    signal: int | None = None
    t_start: str | None
    t_end: str | None
    wall_s: float | None = Field(ge=0)
    tokens: dict[str, int] | None = None
    cost_usd: float | None = None
    cost_source: str | None = None
    limits: dict[str, float | int | None] = {}
    sandbox: str
    isolation: Isolation | None = None
    watchdog: str | None = None
    notes: list[str] = []
    digests: Digests
    package_version: str
    seed: int | None
    imported: ImportSource | None = None

    @model_validator(mode="after")
    def _known_unless_imported(self) -> RunRecord:
        if self.imported is None:
            needed = {
                "t_start": self.t_start,
                "t_end": self.t_end,
                "wall_s": self.wall_s,
                "seed": self.seed,
                **{
                    f"digests.{name}": getattr(self.digests, name)
                    for name, field in Digests.model_fields.items()
                    if field.is_required()
                },
            }
            missing = [name for name, value in needed.items() if value is None]
            if self.label_access == "unknown":
                missing.append("label_access")
            if missing:
                raise ValueError(f"{', '.join(missing)} may be unknown in an imported record only")
        return self

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of the run in Unix seconds; without known times the empty window (inf, -inf)."""
        if self.t_start is None or self.t_end is None:
            return math.inf, -math.inf
        return parse_time(self.t_start), parse_time(self.t_end)


def require_same_split(
    run_dir: str | os.PathLike[str], record: RunRecord, label_rows: Sequence[Mapping[str, str]]
) -> None:
    """Refuse to grade a run by a label table whose patients are split otherwise than the run's were.

    Raises:
        InputError: the splits differ. A record without a recorded split, or no label table, is let through.
    """
    if record.digests.split is None or not label_rows:
        return
    given = split_id(label_rows)
    if given != record.digests.split:
        raise InputError(
            f"{record.trajectory_id} ran on split {record.digests.split[:12]}, the label table holds split "
            f"{given[:12]}; restore the study's seed, folds and cohort, or delete run/ to run again",
            file=Path(run_dir) / "run.json",
            field="digests.split",
        )


class ManifestRow(NamedTuple):
    """One workspace file as the agent left it. ``mtime`` is when it was last changed (see
    :func:`changed_times`), Unix seconds."""

    size: int
    sha256: str
    mtime: float


def iso_time(unix_s: float) -> str:
    """ISO 8601 UTC with microseconds: an agent can write a file and call a tool within one millisecond."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Unix seconds of an ISO 8601 time. Raises ``ValueError`` for anything else."""
    return datetime.fromisoformat(text).timestamp()


def load_run(run_dir: str | os.PathLike[str]) -> RunRecord:
    """Read and check ``run.json``.

    Raises:
        InputError: the file is missing (the record is not complete) or a field is wrong.
    """
    path = Path(run_dir) / "run.json"
    value = read_json(path)
    try:
        record = RunRecord.model_validate(value)
        record.window_s  # noqa: B018  (both times must parse)
    except ValidationError as error:
        raise describe_validation(error, path) from None
    except ValueError as error:
        raise InputError(f"{error}; expected ISO 8601 times", file=path, field="t_start/t_end") from None
    return record


MAX_HASHED_BYTES = 1024**3
"""A larger file is listed with its size and :data:`UNHASHED`: it is no evidence, nobody reads it whole."""
UNHASHED = "too-large"


def changed_times(workspace: Path) -> dict[str, float]:
    """Workspace path → when the file was last changed, Unix seconds.

    The later of its modification time, which anyone may set, and its change time, which only the kernel sets:
    a file that was moved or copied into the workspace was changed then.
    """
    if workspace.is_symlink() or not workspace.is_dir():
        return {}
    return {relative: _changed(path.stat()) for relative, path in walk_files(workspace)}


def _changed(status: os.stat_result) -> float:
    return max(status.st_mtime, status.st_ctime)


def write_manifest(
    workspace: Path, target: Path, changed: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """List every regular file of ``workspace`` (links are not followed) into ``manifest.csv``.

    Args:
        workspace: what the agent left.
        target: the table.
        changed: times taken by :func:`changed_times` before anything else touched the files.

    A file over :data:`MAX_HASHED_BYTES` is not hashed, whatever of it lies on the disk (it may be all hole).
    """
    rows = []
    for relative, path in walk_files(workspace):
        status = path.stat()
        rows.append(
            {
                "path": relative,
                "size": status.st_size,
                "sha256": sha256_file(path) if status.st_size <= MAX_HASHED_BYTES else UNHASHED,
                "mtime": iso_time((changed or {}).get(relative, _changed(status))),
            }
        )
    write_csv(target, MANIFEST_COLUMNS, rows)
    return rows


def load_manifest(run_dir: str | os.PathLike[str]) -> dict[str, ManifestRow]:
    """Workspace path → size, hash and modification time. Raises :class:`InputError` for a bad table."""
    path = Path(run_dir) / "manifest.csv"
    manifest = {}
    for row in read_csv(path, max_bytes=256 * 1024 * 1024):
        try:
            manifest[row["path"]] = ManifestRow(int(row["size"]), row["sha256"], parse_time(row["mtime"]))
        except (KeyError, ValueError):
            raise InputError(f"expected columns {','.join(MANIFEST_COLUMNS)}", file=path) from None
    return manifest


def workspace_digest(manifest: dict[str, ManifestRow]) -> str:
    """One hash of the workspace's contents: paths and bytes, no times."""
    return sha256_json(sorted([path, row.sha256] for path, row in manifest.items()))

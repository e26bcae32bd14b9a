"""A record from a file that another program wrote: the whole ``run/`` folder, or a refusal with its reason.

The record is made beside its place and renamed onto it, so it is there whole or not at all. It holds the
source's bytes, the normalised trajectory and no witness: ``tools.jsonl`` is empty, because no registry was
watching, and so is the workspace. What the source does not say is null, never a guess.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from acpbench import __version__
from acpbench.core.errors import InputError
from acpbench.core.files import write_bytes, write_json
from acpbench.core.ids import check_id, trajectory_id
from acpbench.trajectory.atif import NAMESPACE, to_atif
from acpbench.trajectory.atif_reader import from_atif
from acpbench.trajectory.detect import FORMATS, Detected, detect, read_document
from acpbench.trajectory.inspect_eval import parse_eval
from acpbench.trajectory.jsonl import open_regular, read_lines
from acpbench.trajectory.opencode import parse_export
from acpbench.trajectory.parsing import feed_row, make_parser, parse_sources
from acpbench.trajectory.record import Digests, Harness, ImportSource, RunRecord, parse_time, write_manifest
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import DOCUMENT_FORMATS, TypedTrajectory

MAX_SOURCE_BYTES = 8 * 1024**3
MAX_SUBAGENT_FILES = 200
AUTO = "auto"
DEFAULT_GROUP, DEFAULT_TASK, DEFAULT_REPLICATE = "imported", "unassigned", "1"
UNKNOWN = "unknown"
_COPY_BYTES = 1024 * 1024
_SUBAGENT = re.compile(r"agent-[A-Za-z0-9_-]{1,100}\.jsonl")


def import_file(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    group: str | None = None,
    task: str | None = None,
    replicate: str | None = None,
    source_format: str = AUTO,
    sample: str | None = None,
) -> RunRecord:
    """Write the record of a foreign file to the folder ``output``, which is then a ``run/`` folder.

    Args:
        source: the file. A Claude Code session brings the files of its sub-agents that lie beside it.
        output: folder to make; it must not exist, or be empty.
        group: group id; else the one in the path ``trajectories/<group>/<task>/<replicate>/run``, else
            ``imported``. ``task`` and ``replicate`` likewise.
        source_format: one of :data:`acpbench.trajectory.detect.FORMATS`, or ``auto``.
        sample: which sample of an Inspect log, as ``ID`` or ``ID:EPOCH``.

    Raises:
        InputError: it is no record that is read here, or the folder is in use; nothing is written then.
    """
    source, output = Path(source), Path(output)
    if source_format not in (AUTO, *FORMATS):
        raise InputError(f"{source_format!r} is no format; expected {AUTO} or {', '.join(FORMATS)}",
                         field="--format")  # fmt: skip
    names = _identity(output, group, task, replicate)
    identity = trajectory_id(*names)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(
            "is there already and not an empty folder; a record is never overwritten", file=output
        )
    with open_regular(source) as handle:
        status = os.fstat(handle.fileno())
    size = status.st_size
    if size > MAX_SOURCE_BYTES:
        raise InputError(f"has {size} bytes; at most {MAX_SOURCE_BYTES} are read", file=source)
    found = detect(source) if source_format == AUTO else _as_format(source, source_format)
    if sample is not None and found.source_format != "inspect_eval":
        raise InputError(f"is a {found.source_format} record; only Inspect logs have samples", file=source,
                         field="--sample")  # fmt: skip
    subagents = subagent_files(source) if found.source_format == "claude_code_session" else []
    typed = _parse(source, found, sample, subagents)
    if not typed.counts.kept and source_format == AUTO:
        raise InputError("holds no event that can be named", file=source)
    work = output.with_name(f".{output.name}.import.{secrets.token_hex(6)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        work.mkdir()
        record = _write(work, source, found, typed, names, identity, sample, subagents)
        now = os.stat(source)
        if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise InputError("changed while it was read; import it when its run has ended", file=source)
        os.rename(work, output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return record


def _identity(
    output: Path, group: str | None, task: str | None, replicate: str | None
) -> tuple[str, str, str]:
    parts = output.absolute().parts
    placed = len(parts) > 5 and parts[-1] == "run" and parts[-5] == "trajectories"
    defaults = parts[-4:-1] if placed else (DEFAULT_GROUP, DEFAULT_TASK, DEFAULT_REPLICATE)
    return (
        check_id(group if group is not None else defaults[0], "group"),
        check_id(task if task is not None else defaults[1], "task"),
        check_id(replicate if replicate is not None else defaults[2], "replicate"),
    )


def subagent_files(session: Path) -> list[Path]:
    """Files of a Claude Code session's sub-agents: ``<session>/subagents/agent-<id>.jsonl``, sorted."""
    folder = session.with_suffix("") / "subagents"
    if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():
        return []
    found = sorted(
        path for path in folder.iterdir()
        if _SUBAGENT.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    )  # fmt: skip
    if len(found) > MAX_SUBAGENT_FILES:
        raise InputError(f"holds {len(found)} sub-agents' files; at most {MAX_SUBAGENT_FILES} are read",
                         file=folder)  # fmt: skip
    return found


def _as_format(source: Path, source_format: str) -> Detected:
    """A format that the caller names; only whether it is lines or one document is looked at."""
    if source_format == "inspect_eval":
        return Detected(source_format, None, False)
    if source_format in DOCUMENT_FORMATS:
        document, problem = read_document(source)
        if problem:
            raise InputError(problem, file=source)
        return Detected(source_format, document, False)
    for line in read_lines(source):
        if line.data.strip() in (b"{", b"["):
            document, problem = read_document(source)
            if problem is None:
                return Detected(source_format, document, False)
        if line.data.strip():
            break
    return Detected(source_format, None, True)


def _parse(source: Path, found: Detected, sample: str | None, subagents: list[Path]) -> TypedTrajectory:
    try:
        if found.source_format == "inspect_eval":
            return parse_eval(source, sample)
        if found.source_format == "atif":
            return from_atif(found.document)
        if found.source_format == "opencode_export":
            if not isinstance(found.document, dict):
                raise InputError("is not a JSON object; expected an opencode export")
            return parse_export(found.document)
        if found.is_lines:
            return parse_sources(found.source_format, [read_lines(path) for path in (source, *subagents)])
    except InputError as error:
        raise error if error.file else InputError(error.message, file=source, field=error.field) from None
    return _entries(found)


def _entries(found: Detected) -> TypedTrajectory:
    """A stream that was written as one JSON document: a list of entries, or a single pretty-printed one."""
    collector, parser = make_parser(found.source_format)
    rows = found.document if isinstance(found.document, list) else [found.document]
    for number, row in enumerate(rows, start=1):
        collector.enter(number)
        if isinstance(row, dict):
            feed_row(collector, parser, row)
        else:
            collector.malformed(f"is JSON but no object ({type(row).__name__})", row)
    parser.finish()
    return collector.done()


def _write(
    work: Path,
    source: Path,
    found: Detected,
    typed: TypedTrajectory,
    names: tuple[str, str, str],
    identity: str,
    sample: str | None,
    subagents: list[Path],
) -> RunRecord:
    digest = hashlib.sha256()
    suffix = "eval" if found.source_format == "inspect_eval" else "json"
    size = _copy(source, work / ("stream.jsonl" if found.is_lines else f"source.{suffix}"), digest)
    if not found.is_lines:
        write_bytes(work / "stream.jsonl", b"")  # every record has one; a document is no stream
    for path in subagents:
        size += _copy(path, work / "subagents" / path.name, digest)
    write_bytes(work / "tools.jsonl", b"")
    (work / "workspace").mkdir()
    write_manifest(work / "workspace", work / "manifest.csv")
    write_json(
        work / "trajectory.json",
        to_atif(typed, session_id=identity, extra={NAMESPACE: {"trajectory_id": identity}}),
    )
    record = _record(typed, names, identity, _source(source, typed, digest, size, sample, subagents))
    write_json(work / "run.json", record.model_dump(mode="json", by_alias=True))
    return record


def _copy(source: Path, target: Path, digest: Any) -> int:
    """Copy bytes as they are, hashing them; returns their number."""
    target.parent.mkdir(exist_ok=True)
    size = 0
    with open_regular(source) as reader, open(target, "xb") as writer:
        for chunk in _chunks(reader):
            digest.update(chunk)
            writer.write(chunk)
            size += len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return size


def _chunks(reader: BinaryIO) -> Any:
    return iter(lambda: reader.read(_COPY_BYTES), b"")


def _source(
    source: Path,
    typed: TypedTrajectory,
    digest: Any,
    size: int,
    sample: str | None,
    subagents: list[Path],
) -> ImportSource:
    counts = typed.counts
    return ImportSource(
        file_name=source.name.encode("utf-8", "backslashreplace").decode(),
        source_format=typed.source_format,
        sha256=digest.hexdigest(),
        size_bytes=size,
        importer_version=__version__,
        sample=sample,
        subagent_files=[path.name for path in subagents],
        lines=counts.lines,
        kept=counts.kept,
        unknown=counts.unknown,
        malformed=counts.malformed,
        folded=counts.folded,
        shortened=counts.shortened,
        problems=typed.problems,
    )


def _record(
    typed: TypedTrajectory, names: tuple[str, str, str], identity: str, source: ImportSource
) -> RunRecord:
    status, reason = stream_status(typed)
    times = typed.times
    wall_s = typed.evidence.get("duration_s")
    if wall_s is None and times is not None:
        wall_s = round(max(0.0, parse_time(times[1]) - parse_time(times[0])), 6)
    return RunRecord(
        trajectory_id=identity,
        group=names[0],
        task_id=names[1],
        replicate=names[2],
        attempt=1,
        harness=Harness(
            name=typed.agent_name or typed.harness,
            version=typed.harness_version or UNKNOWN,
        ),
        model=None if typed.model is None else {"model": typed.model},
        label_access="unknown",
        run_status=status,
        status_reason=reason,
        t_start=times[0] if times else None,
        t_end=times[1] if times else None,
        wall_s=wall_s,
        tokens=typed.totals.known() if typed.totals else None,
        cost_usd=typed.cost_usd,
        cost_source=typed.cost_source,
        sandbox=UNKNOWN,
        digests=Digests(task=None, skills=None, tools=None, workspace_initial=None),
        package_version=__version__,
        seed=None,
        imported=source,
    )

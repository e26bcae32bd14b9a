"""Human audit of checkpoint items: ``reviews/checkpoints/<reviewer>.jsonl``.

One record a line. The latest record of a reviewer on an item wins; reviewers who differ are a conflict,
which changes nothing until it is resolved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.core.files import read_text

STATUSES = ("PASS", "PARTIAL", "FAIL", "NA", "SKIP")
CONFIDENCES = ("low", "medium", "high")
FIELDS = (
    "trajectory",
    "checkpoint",
    "status",
    "confidence",
    "evidence_refs",
    "rationale",
    "reviewer",
    "time",
)
MAX_BYTES = 64 * 1024 * 1024


class AuditRecord(NamedTuple):
    """One reviewer's word on one item. ``checkpoint`` is the item id; ``source`` is ``file:line``."""

    trajectory: str
    checkpoint: str
    status: str
    confidence: str
    evidence_refs: tuple[str, ...]
    rationale: str
    reviewer: str
    time: datetime
    source: str


class AuditVerdict(NamedTuple):
    """What the audit says about one item: one ``status``, or ``conflict`` with each reviewer's record."""

    status: str
    records: tuple[AuditRecord, ...]


def _parse(line: str, path: Path, number: int) -> AuditRecord:
    def bad(message: str, field: str | None = None) -> InputError:
        return InputError(f"line {number}: {message}", file=path, field=field)

    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise bad(f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise bad("expected an object")
    missing = [field for field in FIELDS if field not in value]
    if missing:
        raise bad(f"lacks {', '.join(missing)}")
    for field in ("trajectory", "checkpoint", "status", "confidence", "rationale", "reviewer", "time"):
        if not isinstance(value[field], str) or not value[field].strip():
            raise bad("expected text", field)
    if value["status"] not in STATUSES:
        raise bad(f"{value['status'][:40]!r} is not one of {', '.join(STATUSES)}", "status")
    if value["confidence"] not in CONFIDENCES:
        raise bad(f"{value['confidence'][:40]!r} is not one of {', '.join(CONFIDENCES)}", "confidence")
    refs = value["evidence_refs"]
    if not isinstance(refs, list) or not all(isinstance(ref, str) for ref in refs):
        raise bad("expected a list of citations", "evidence_refs")
    if value["reviewer"] != path.stem:
        # One file a person: two names in one file could make one reader count as two.
        raise bad(f"{value['reviewer'][:40]!r} differs from the file name {path.stem!r}", "reviewer")
    try:
        time = datetime.fromisoformat(value["time"])
    except ValueError:
        raise bad(f"{value['time'][:40]!r} is not an ISO 8601 time", "time") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return AuditRecord(
        trajectory=value["trajectory"],
        checkpoint=value["checkpoint"],
        status=value["status"],
        confidence=value["confidence"],
        evidence_refs=tuple(refs),
        rationale=" ".join(value["rationale"].split()),
        reviewer=value["reviewer"],
        time=time,
        source=f"{path.name}:{number}",
    )


def read_audit_records(folder: str | os.PathLike[str]) -> list[AuditRecord]:
    """Every record of every reviewer, in file and line order; a missing or empty folder is no audit.

    Raises:
        InputError: a line that is not a complete record, named by file and line.
    """
    records = []
    folder = Path(folder)
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        for number, line in enumerate(read_text(path, max_bytes=MAX_BYTES).split("\n"), start=1):
            if line.strip():
                records.append(_parse(line, path, number))
    return records


def audit_verdicts(records: Iterable[AuditRecord]) -> dict[tuple[str, str], AuditVerdict]:
    """(trajectory, item id) → verdict. At equal times the later line of a reviewer wins."""
    latest: dict[tuple[str, str], dict[str, AuditRecord]] = {}
    for record in records:
        held = latest.setdefault((record.trajectory, record.checkpoint), {})
        before = held.get(record.reviewer)
        if before is None or record.time >= before.time:
            held[record.reviewer] = record
    verdicts = {}
    for key, by_reviewer in latest.items():
        chosen = tuple(by_reviewer[name] for name in sorted(by_reviewer))
        statuses = {record.status for record in chosen}
        verdicts[key] = AuditVerdict(statuses.pop() if len(statuses) == 1 else "conflict", chosen)
    return verdicts


def audit_summary(verdict: AuditVerdict) -> list[dict[str, Any]]:
    """The records behind a verdict, short, for the adjudicated row."""
    return [{"reviewer": record.reviewer, "status": record.status} for record in verdict.records]

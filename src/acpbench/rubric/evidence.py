"""What a record holds as evidence: workspace files, the manifest, witnessed events and reference labels.

Three principles live here. Missing evidence is a reason to fail, never an error. A file counts as an output
of the run only when the manifest lists it, its bytes are the listed ones, and it was written inside the run's
window. Labels come from the benchmark's table, not from the agent's copy of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.rubric import formats
from acpbench.rubric.formats import Loaded
from acpbench.tasks.models import Task
from acpbench.trajectory.events import Event, load_events
from acpbench.trajectory.record import ManifestRow, load_manifest, load_run, require_same_split

WINDOW_TOLERANCE_S = 2.0
RUN_PREFIX = "run:"
MAX_SNIPPET_CHARS = 2_000
MAX_CITED_BYTES = 64 * 1024 * 1024
ROUND_ZERO = "outputs/round_0"
MAX_ROUND = 5

_LINES = re.compile(r"L?(\d{1,9})(?:-L?(\d{1,9}))?")
_ROUND_FOLDER = re.compile(r"reflection/round_(\d{1,4})/.+")


def round_folder(round_id: int) -> str:
    """Folder of a round's files: ``outputs/round_0``, then ``reflection/round_k``."""
    return ROUND_ZERO if round_id == 0 else f"reflection/round_{round_id}"


class Rejected(Exception):
    """Evidence is missing or does not hold; the message is the reason shown beside the FAIL."""


class Reference(NamedTuple):
    """The benchmark's label of one patient; empty text where it is not known."""

    split: str
    label: str
    time: str
    event: str


def resolve_ref(run_dir: str | Path, ref: str) -> str | None:
    """The cited text when a citation points at something that exists in a record, else ``None``.

    Args:
        run_dir: the record.
        ref: ``path``, ``path#Lstart-Lend`` or ``path#/json/pointer``, relative to the workspace, or to the
            record after ``run:``.

    Returns:
        A non-empty excerpt of at most 2,000 characters, or ``None``: no such file, line or field, a path that
        leaves its folder, a link, a blank range.
    """
    if not isinstance(ref, str) or len(ref) > 1_000:
        return None
    root = Path(run_dir)
    path, mark, fragment = ref.partition("#")
    path = path.strip()
    if path.startswith(RUN_PREFIX):
        path = path[len(RUN_PREFIX) :]
    else:
        root = root / "workspace"
    file, problem = formats.locate(root, path)
    if file is None or problem:
        return None
    if not mark or not fragment:
        data, problem = formats.read_tail(file, MAX_SNIPPET_CHARS)
        return f"({path})" if data is not None and not data.strip() and file.stat().st_size else data or None
    data_bytes, problem = formats.read_bounded(file, MAX_CITED_BYTES)
    if data_bytes is None:
        return None
    if fragment.startswith("/"):
        parse = formats.parse_yaml if path.endswith((".yaml", ".yml")) else formats.parse_json
        document = parse(data_bytes)
        found = formats.pointer(document.value, fragment) if document.problem is None else document
        if found.problem is not None:
            return None
        try:
            return json.dumps(found.value, ensure_ascii=False, default=str)[:MAX_SNIPPET_CHARS]
        except (ValueError, RecursionError):
            return None
    span = _LINES.fullmatch(fragment.strip())
    if not span:
        return None
    start = int(span[1])
    end = int(span[2] or start)
    lines = data_bytes.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if not 1 <= start <= end <= len(lines):
        return None
    text = b"\n".join(lines[start - 1 : end]).decode("utf-8", errors="backslashreplace")
    return text[:MAX_SNIPPET_CHARS] if text.strip() else None


class Evidence:
    """Everything one record offers to rules. Reads are cached; nothing raises on what an agent wrote.

    Args:
        run_dir: the record (``run.json``, ``manifest.csv``, event logs, ``workspace/``).
        task: the benchmark's task, not the agent's copy.
        labels: rows of the evaluator's ``labels.csv``.

    Raises:
        InputError: ``run.json`` or ``manifest.csv`` is missing or broken: that is no record; or the run was
            made on another split than that of ``labels``.
    """

    def __init__(self, run_dir: str | Path, task: Task, labels: Iterable[Mapping[str, str]]) -> None:
        labels = list(labels)
        self.run_dir = Path(run_dir)
        self.workspace = self.run_dir / "workspace"
        self.task = task
        self.run = load_run(self.run_dir)
        require_same_split(self.run_dir, self.run, labels)
        self.window_s = self.run.window_s
        self.manifest: dict[str, ManifestRow] = load_manifest(self.run_dir)
        self.reference = _by_patient(labels)
        self._cache: dict[tuple[str, str], Loaded] = {}

    # -- witnessed events --

    @cached_property
    def events(self) -> list[Event]:
        """Witnessed events in time order, from the registry's log and the harness's stream."""
        return load_events(self.run_dir)

    @cached_property
    def tool_events(self) -> list[Event]:
        """Registry calls in time order."""
        return [event for event in self.events if event.source == "registry" and event.kind == "tool"]

    @cached_property
    def tool_roles(self) -> dict[str, str]:
        """Tool id → role, from the registry the run was given (see :func:`trusted_registry`)."""
        registry = trusted_registry(self.given_json("registry.json").value)
        tools = formats.items(registry.get("tools"))
        return {
            formats.words(tool.get("id")): formats.words(tool.get("role"))
            for tool in tools
            if isinstance(tool, dict) and formats.words(tool.get("id"))
        }

    # -- files --

    def status(self, path: str) -> str | None:
        """Why ``path`` is no output of this run, or ``None`` when it is one."""
        row = self.manifest.get(path)
        if row is None:
            return "is missing"
        file, problem = formats.locate(self.workspace, path)
        if file is None:
            return problem
        if file.stat().st_size != row.size:
            return "differs from the record's manifest"
        if not self.window_s[0] - WINDOW_TOLERANCE_S <= row.mtime <= self.window_s[1] + WINDOW_TOLERANCE_S:
            return "was not written inside the run's window"
        return None if row.size else "is empty"

    def files(self, prefix: str) -> list[str]:
        """Manifest paths under a folder (``prefix`` ends in ``/``), sorted."""
        return sorted(path for path in self.manifest if path.startswith(prefix))

    def _load(self, kind: str, path: str, *, output: bool) -> Loaded:
        key = (kind if output else f"given {kind}", path)
        if key not in self._cache:
            self._cache[key] = self._parse(kind, path, output=output)
        return self._cache[key]

    def _parse(self, kind: str, path: str, *, output: bool) -> Loaded:
        problem = self.status(path) if output else None
        file, missing = formats.locate(self.workspace, path)
        if problem or missing or file is None:
            return Loaded(None, problem or missing)
        limit = formats.MAX_PROSE_BYTES if kind == "prose" else formats.MAX_DOCUMENT_BYTES
        data, problem = formats.read_bounded(file, limit)
        if data is None:
            return Loaded(None, problem)
        row = self.manifest.get(path)
        if row is not None and hashlib.sha256(data).hexdigest() != row.sha256:
            return Loaded(None, "differs from the record's manifest")
        parse = {
            "prose": formats.decode_prose,
            "json": formats.parse_json,
            "jsonl": formats.parse_jsonl,
            "yaml": formats.parse_yaml,
            "table": formats.parse_table,
        }[kind]
        return parse(data)

    def prose(self, path: str) -> Loaded:
        """Text of an output."""
        return self._load("prose", path, output=True)

    def json(self, path: str) -> Loaded:
        """JSON of an output."""
        return self._load("json", path, output=True)

    def jsonl(self, path: str) -> Loaded:
        """JSON-lines objects of an output."""
        return self._load("jsonl", path, output=True)

    def yaml(self, path: str) -> Loaded:
        """YAML of an output."""
        return self._load("yaml", path, output=True)

    def table(self, path: str) -> Loaded:
        """CSV of an output as a :class:`~acpbench.rubric.formats.Table`."""
        return self._load("table", path, output=True)

    def given_json(self, path: str) -> Loaded:
        """JSON of a file the run was given: nothing once the agent changed it."""
        return self._given("json", path)

    def given_table(self, path: str) -> Loaded:
        """CSV of a file the run was given: nothing once the agent changed it."""
        return self._given("table", path)

    def untouched(self, path: str) -> bool:
        """Whether a file lies as the run was given it: last changed before the run began."""
        row = self.manifest.get(path)
        return row is not None and row.mtime <= self.window_s[0]

    def _given(self, kind: str, path: str) -> Loaded:
        if path in self.manifest and not self.untouched(path):
            return Loaded(None, "was changed during the run")
        return self._load(kind, path, output=False)

    # -- rounds --

    @cached_property
    def rounds(self) -> list[int]:
        """Numbers of the reflection rounds with at least one file, ascending (also beyond the limit)."""
        found = {int(match[1]) for path in self.manifest if (match := _ROUND_FOLDER.fullmatch(path))}
        return sorted(number for number in found if self._has_output(number))

    def _has_output(self, round_id: int) -> bool:
        return any(self.status(path) is None for path in self.files(round_folder(round_id) + "/"))

    def round_exists(self, round_id: int) -> bool:
        """Whether a round left any output."""
        return self._has_output(0) if round_id == 0 else round_id in self.rounds

    def bases(self, round_id: int) -> list[int]:
        """States a round may be compared with: the round before, and the one kept when that was reverted."""
        found = [round_id - 1]
        state = round_id - 1
        while state > 0:
            summary = formats.mapping(self.json(f"{round_folder(state)}/summary.json").value)
            if formats.words(summary.get("decision")).lower() not in ("revert", "stop"):
                break
            state -= 1
            found.append(state)
        return found

    # -- labels --

    @cached_property
    def classes(self) -> list[str]:
        """Class names in order: the task's, or those of the label table when the task names none."""
        if self.task.classes or self.task.output_type in ("survival", "continuous"):
            return self.task.classes
        return sorted({row.label for row in self.reference.values() if row.label})

    def canonical(self, value: object) -> str | None:
        """The class name of a label as somebody wrote it."""
        found = self.task.canonical_label(value)
        if found is None and not self.task.classes and str(value).strip() in self.classes:
            return str(value).strip()
        return found

    def resolve(self, ref: Any) -> str | None:
        """:func:`resolve_ref` in this record."""
        return resolve_ref(self.run_dir, ref)


def trusted_registry(given: Any) -> dict[str, Any]:
    """The registry document of a run: the workspace's, or this package's own where the agent changed it.

    Args:
        given: content of ``registry.json``, ``None`` when it is not as the run was given it.
    """
    if isinstance(given, dict):
        return given
    from acpbench.harness.registry import registry_document

    return registry_document()


def _by_patient(labels: Iterable[Mapping[str, str]]) -> dict[str, Reference]:
    """Reference of each patient; of several slides the first that carries a label."""
    found: dict[str, Reference] = {}
    for row in labels:
        patient = str(row.get("patient_id") or "").strip()
        fold = {"": "", "0": "test", "1": "validation"}.get(str(row.get("fold") or ""), "train")
        new = Reference(
            str(row.get("split") or fold),
            str(row.get("label") or ""),
            str(row.get("time") or ""),
            str(row.get("event") or ""),
        )
        old = found.get(patient)
        if patient and (old is None or not (old.label or old.time)):
            found[patient] = new
    return found

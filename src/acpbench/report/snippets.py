"""Short excerpts of the evidence that a checkpoint cites, and where on the page the cited thing is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from acpbench.core.errors import InputError
from acpbench.report.untrusted import clean
from acpbench.rubric.evidence import resolve_ref
from acpbench.trajectory.record import ManifestRow, load_manifest

_MAX_CHARACTERS = 280
_MAX_LINES = 4
_CALL = re.compile(r"run:tools\.jsonl#L(\d{1,9})")
_SECTIONS = {
    "plan/plan.md": "plan",
    "plan/workflow_spec.json": "spec",
    "reports/report.md": "report",
}


def call_anchor(ref: str) -> str | None:
    """Element id of the tool call that ``run:tools.jsonl#L…`` cites, or ``None`` for any other citation."""
    found = _CALL.fullmatch(ref)
    return f"call-{found[1]}" if found else None


class Snippets:
    """Resolve citations inside one run folder; each citation is resolved once.

    Args:
        run_dir: the record; ``run:`` citations are relative to it, the others to ``run_dir/workspace``.
        calls: id → one line about each tool call that the page shows; a citation of such a call shows this
            line and leads to the call.
    """

    def __init__(self, run_dir: Path, calls: Mapping[str, str] | None = None) -> None:
        self._run_dir = run_dir
        self._calls = calls or {}
        self._shown: dict[str, dict[str, str | None]] = {}
        try:
            self._manifest: dict[str, ManifestRow] = load_manifest(run_dir)
        except InputError:
            self._manifest = {}

    def show(self, ref: object) -> dict[str, str | None]:
        """What is shown for one citation.

        Returns:
            ``ref``; ``text``, a short excerpt (``None`` when the citation names no part or does not resolve);
            ``file``, size and hash of a file cited as a whole, from the record's manifest; ``link``, the part
            of the page that shows the cited thing.
        """
        ref = ref if isinstance(ref, str) else str(ref)
        if ref not in self._shown:
            path, mark, part = ref.partition("#")
            row = self._manifest.get(path)
            call = call_anchor(ref)
            call = call if call in self._calls else None
            self._shown[ref] = {
                "ref": clean(ref[:160]),
                "text": self._calls[call] if call else self._excerpt(ref) if mark and part else None,
                "file": f"{row.size:,} bytes, sha256 {row.sha256[:12]}…" if row and not part else None,
                "link": call or _SECTIONS.get(path),
            }
        return self._shown[ref]

    def _excerpt(self, ref: str) -> str | None:
        text = resolve_ref(self._run_dir, ref)
        if text is None:
            return None
        lines = [line[:_MAX_CHARACTERS] for line in clean(text).strip("\n").split("\n")]
        excerpt = "\n".join(lines[:_MAX_LINES])
        cut = len(lines) > _MAX_LINES or len(excerpt) > _MAX_CHARACTERS or len(text) > len(excerpt) + 1
        return excerpt[:_MAX_CHARACTERS] + (" …" if cut else "") or None

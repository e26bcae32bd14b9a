"""Times of records that a test builds: what it set, not when it ran."""

from __future__ import annotations

from pathlib import Path

from acpbench.core.files import walk_files


def set_times(workspace: Path) -> dict[str, float]:
    """Workspace path → modification time, for :func:`acpbench.trajectory.record.write_manifest`."""
    return {relative: path.stat().st_mtime for relative, path in walk_files(workspace)}

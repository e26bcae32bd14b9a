"""The index of a cohort's feature files."""

from __future__ import annotations

import json
from pathlib import Path

from acpbench.core.files import read_csv
from acpbench.features.store import write_index


def test_one_row_a_sidecar_sorted_with_the_name_of_the_feature_file(tmp_path: Path) -> None:
    for slide_id, status, n_tiles in (("b", "ok", 5), ("a.1", "empty_tissue", 0)):
        (tmp_path / f"{slide_id}.h5.json").write_text(
            json.dumps(
                {
                    "slide_id": slide_id,
                    "encoder": "e",
                    "cache_key": "k",
                    "sha256": "x",
                    "n_tiles": n_tiles,
                    "status": status,
                }
            )
        )
    write_index(tmp_path.glob("*.h5.json"), tmp_path / "index.csv")
    rows = read_csv(tmp_path / "index.csv")
    assert [(row["path"], row["status"], row["n_tiles"]) for row in rows] == [
        ("a.1.h5", "empty_tissue", "0"),
        ("b.h5", "ok", "5"),
    ]

"""Does the reference model's held-out attention fall on the tiles that hold the target?

    python benchmarks/attention_truth.py RESULTS TASK ENCODER TRUTH.csv --negative normal

TRUTH has slide_id, x, y (level-0 corner of a tile), size and label; a tile is positive when its label is not
the negative one. Prints the mean over slides of the AUROC of attention, over slides that have tiles of both
kinds, with the number of slides it rests on, and the range.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import h5py

from acpbench.core.files import read_csv
from acpbench.mil.overlay import attention_auroc


def slide_aurocs(
    folds: list[Path], truth_csv: Path, negative: str
) -> tuple[dict[str, float], dict[str, str]]:
    """Slide id → AUROC of its held-out attention, and slide id → why it has none."""
    truth: dict[str, list[dict[str, object]]] = {}
    for row in read_csv(truth_csv):
        tile = {"x_level0": row["x"], "y_level0": row["y"], "positive": int(row["label"] != negative)}
        truth.setdefault(row["slide_id"], []).append(tile)
    values, without = {}, {}
    for path in folds:
        with h5py.File(path, "r") as handle:
            for slide_id, group in handle.items():
                value, note = attention_auroc(
                    truth.get(slide_id, []), group["coords"][()], group["attention"][()]
                )
                if value is None:
                    without[slide_id] = note
                else:
                    values[slide_id] = value
    return values, without


def main() -> None:
    """Print one line a call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("task")
    parser.add_argument("encoder")
    parser.add_argument("truth", type=Path)
    parser.add_argument("--negative", required=True)
    given = parser.parse_args()
    folder = given.results / "reference" / given.task / given.encoder / "folds"
    values, without = slide_aurocs(sorted(folder.glob("*/attention.h5")), given.truth, given.negative)
    if not values:
        raise SystemExit(f"no slide has tiles of both kinds; {len(without)} without")
    ordered = sorted(values.values())
    print(
        f"{given.task} {given.encoder}: attention AUROC mean {statistics.mean(ordered):.3f}, "
        f"median {statistics.median(ordered):.3f}, range {ordered[0]:.3f} to {ordered[-1]:.3f}, "
        f"{len(values)} of {len(values) + len(without)} slides"
    )


if __name__ == "__main__":
    main()

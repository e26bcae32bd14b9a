"""Peak memory of training on and predicting bags as large as the largest slides.

    python benchmarks/memory.py [--output FILE]

Each measurement is a process of its own, with gated attention over whole bags, on feature files of random
float16 numbers; its peak resident set is what the kernel counted. Rows without a peer: the value is how many
times the peak fits into 4 GB, and must reach 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import bench

LIMIT_MB = 4000
WIDTH = 1024
CHILD = """
import json, re, sys
from pathlib import Path
from acpbench.mil.bags import load_bags
from acpbench.mil.train import MilSettings, predict, train_fold
folder, slides, what = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
rows = [
    {"slide_id": name, "patient_id": name, "label": "ab"[i % 2]} for i, name in enumerate(slides)
]
bags, dropped = load_bags(rows, "binary", lambda slide: folder / f"{slide}.h5")
assert not dropped
settings = MilSettings(max_epochs=1, bag_size=None, eval_bag_size=None, batch_size=4, device="cpu")
longest = max(bags, key=lambda bag: len(bag.features))
if what == "predict":
    bags.remove(longest)
n_val = max(1, len(bags) // 4)
fitted = train_fold(bags[n_val:], bags[:n_val], "binary", ["a", "b"], settings)
predict(fitted, [longest])
# Not ru_maxrss, which a child inherits from the process that started it.
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"peak_mb": peak_kib * 1024 / 1e6}))
"""


def write_slide(folder: Path, name: str, n_tiles: int, seed: int) -> None:
    """A feature file of random numbers."""
    import numpy as np

    from acpbench.features.store import FeatureBag, write_features

    generator = np.random.default_rng(seed)
    features = np.empty((n_tiles, WIDTH), np.float16)
    for start in range(0, n_tiles, 10_000):
        part = features[start : start + 10_000]
        part[:] = generator.standard_normal(part.shape, dtype=np.float32)
    coords = np.stack([np.arange(n_tiles) * 256, np.zeros(n_tiles)], axis=1).astype(np.int64)
    attrs = {"slide_id": name, "status": "ok", "encoder": "random", "cache_key": name}
    write_features(folder / f"{name}.h5", FeatureBag(features, coords, attrs))


def peak_mb(folder: Path, slides: list[str], what: str) -> float:
    """Peak resident set of one process."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), json.dumps(slides), what],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(done.stdout.strip().splitlines()[-1])["peak_mb"])


def measure() -> list[bench.Row]:
    """One row a case."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for index in range(15):
            write_slide(folder, f"s{index}", 40_000, index)
        long_ones = [f"s{index}" for index in range(15)]
        write_slide(folder, "whole", 200_000, 99)
        for index in range(4):
            write_slide(folder, f"short{index}", 1000, 100 + index)
        short_ones = [f"short{index}" for index in range(4)]
        cases = [
            ("training on and predicting four whole 40k-tile x 1024 bags", long_ones[:4], "train"),
            ("the same with fifteen (2.5 GB as float32), of which 1.5 GB are held", long_ones, "train"),
            ("predicting a 200k-tile x 1024 slide", ["whole", *short_ones], "predict"),
        ]
        for work, slides, what in cases:
            peak = peak_mb(folder, slides, what)
            rows.append(
                bench.Row(
                    f"memory: {work}",
                    LIMIT_MB / peak,
                    "times within 4 GB",
                    must_reach=1.0,
                    note=f"peak {peak:,.0f} MB",
                )
            )
    return rows


if __name__ == "__main__":
    bench.main(measure, __doc__)

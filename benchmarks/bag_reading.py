"""Reading a slide's features: 16,384 tiles of 1,024 numbers, ours against TRIDENT's and CLAM's chunks.

All three files hold the same values and lie in the page cache; each is read whole into memory, in turns in
one run. Ours is float16 in one piece, as the workflow stores it; TRIDENT's layout is float32 in chunks of one
tile, CLAM's float32 in chunks of 32. The row on the first reading includes the SHA-256 of the file, which a
process checks once a file and the others do not have.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from bench import Row, best_seconds, compare, main

from acpbench.features import store
from acpbench.features.store import FeatureBag, read_features, write_features

TILES, DIM, ROUNDS = 16_384, 1_024, 7


def measure() -> list[Row]:
    features = np.random.default_rng(0).standard_normal((TILES, DIM), dtype=np.float32)
    coords = np.zeros((TILES, 2), np.int64)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.h5" for name in ("ours", "trident", "clam")}
        attrs = {"slide_id": "s", "status": "ok", "encoder": "e", "cache_key": "k"}
        write_features(paths["ours"], FeatureBag(features.astype(np.float16), coords, attrs))
        for name, rows in (("trident", 1), ("clam", 32)):
            with h5py.File(paths[name], "w") as handle:
                handle.create_dataset("features", data=features, chunks=(rows, DIM), maxshape=(None, DIM))
                handle.create_dataset("coords", data=coords, chunks=(rows, 2), maxshape=(None, 2))

        def chunked(path: Path) -> Any:
            with h5py.File(path, "r", locking=False) as handle:
                return handle["features"][()], handle["coords"][()]

        def first() -> Any:
            store._VERIFIED.clear()
            return read_features(paths["ours"])

        works: dict[str, Callable[[], Any]] = {
            "ours": lambda: read_features(paths["ours"]),
            "first": first,
            "trident": lambda: chunked(paths["trident"]),
            "clam": lambda: chunked(paths["clam"]),
        }
        assert np.array_equal(works["ours"]().features, features.astype(np.float16))
        assert np.array_equal(works["trident"]()[0], features)
        seconds = dict.fromkeys(works, float("inf"))
        for _ in range(ROUNDS):
            for name, work in works.items():
                seconds[name] = min(seconds[name], best_seconds(work, 1))
        size = os.path.getsize(paths["ours"]) / 2**20

    note = f"float16 in one piece ({size:.0f} MiB) against float32 chunks; both in the page cache"
    ms = {name: 1000 * value for name, value in seconds.items()}
    return [
        compare("reading a 16k x 1024 bag", ms["ours"], "ms", "(1, D) chunks, as TRIDENT", ms["trident"],
                must_reach=10, lower_is_better=True, note=note),
        compare("reading a 16k x 1024 bag", ms["ours"], "ms", "(32, D) chunks, as CLAM", ms["clam"],
                lower_is_better=True, note=note),
        compare("first reading of it, SHA-256 checked", ms["first"], "ms", "(1, D) chunks, as TRIDENT",
                ms["trident"], lower_is_better=True, note="the chunked file is not checked"),
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure, __doc__)

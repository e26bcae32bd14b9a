"""What the tile-reading peers share: read tiles one by one and print the time of the fastest pass."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np


def measure(open_reader: Callable[[str], Callable[[int, int, int], np.ndarray]]) -> None:
    """Arguments of the process: the slide, a JSON list of ``[x, y]``, the tile side, passes.

    ``open_reader(path)`` gives ``read(x, y, side)``, a region of level 0 as uint8 RGB. A slide is opened anew
    for every pass, so that no pass finds the tiles of the one before.
    """
    path, positions, side, passes = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    seconds, total = [], 0
    for _ in range(passes):
        read = open_reader(path)
        read(0, 0, side)
        start = time.perf_counter()
        for x, y in positions:
            tile = read(x, y, side)
        seconds.append(time.perf_counter() - start)
        if tile.shape != (side, side, 3) or tile.dtype != np.uint8:
            raise SystemExit(f"not an RGB tile: {tile.shape} {tile.dtype}")
        total = int(tile.astype(np.int64).sum())
    print(json.dumps({"seconds": min(seconds), "last_tile_sum": total}))

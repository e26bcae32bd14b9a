"""hs2p: tile coordinates from a tissue mask. Arguments: mask.npy, slide width, height, um/px, tile side."""

import json
import sys
import time

import numpy as np
from hs2p import detect_contours, generate_tiles

mask = np.load(sys.argv[1]).astype(np.uint8) * 255
width, height, side = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
spacing = float(sys.argv[4])
levels = [1.0, 4.0, 16.0]
shared = {"requested_spacing_um": spacing, "base_spacing_um": spacing, "level_downsamples": levels}
whole, tiles_only = [], []
for _ in range(3):
    start = time.perf_counter()
    contours = detect_contours(mask, slide_dimensions=(width, height), a_t=0, **shared)
    between = time.perf_counter()
    tiles = generate_tiles(
        (width, height), contours, requested_tile_size_px=side, min_tissue_fraction=0.5, **shared
    )
    end = time.perf_counter()
    whole.append(end - start)
    tiles_only.append(end - between)
print(json.dumps({"seconds": min(whole), "seconds_tiles_only": min(tiles_only), "n_tiles": len(tiles.x)}))

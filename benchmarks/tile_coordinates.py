"""Tile coordinates of a 100k x 80k px slide from one and the same tissue mask, against hs2p and LazySlide.

Compared: 256 px tiles at the slide's own 0.25 um/px, kept when half of them is tissue. We and hs2p start from
the boolean mask (1563 x 1250); hs2p finds contours in it first, as it always does. LazySlide starts from
polygons of that mask, made before its clock runs. Numbers of tiles differ: hs2p and LazySlide anchor a grid
to every piece of tissue, we use one grid for the slide. Finding tissue and writing files are not timed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bench import HERE, PeerMissing, Row, best_seconds, compare, main, run_peer

from acpbench.slides.annotations import mask_polygons
from acpbench.slides.tiling import TilingSettings, tile_slide
from acpbench.slides.tissue import TissueMask

WIDTH, HEIGHT, SIDE, SPACING_UM = 100096, 80128, 256, 0.25
ROUNDS = 3


def tissue() -> np.ndarray:
    """bool (1250, 1563): forty overlapping discs with ragged edges and holes, about half of the slide."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:1250, :1563]
    ragged = gaussian_filter(rng.normal(0, 1, (1250, 1563)), 6) * 300
    mask = np.zeros((1250, 1563), bool)
    for _ in range(40):
        centre_x, centre_y, radius = rng.uniform(100, 1463), rng.uniform(100, 1150), rng.uniform(20, 200)
        mask |= np.hypot(x - centre_x, y - centre_y) + ragged < radius
    return mask


def measure() -> list[Row]:
    """One row per peer."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.path.insert(0, str(HERE.parent))
    from tests.slides.pictures import encode_tile, tissue_picture, write_repeated_tile_tiff

    mask = tissue()
    scale = (WIDTH / mask.shape[1], HEIGHT / mask.shape[0])
    found = TissueMask(mask, scale, 0.1, True, 1)
    levels = tuple((WIDTH // factor, HEIGHT // factor) for factor in (1, 4, 16))
    slide = SimpleNamespace(
        dimensions=levels[0], level_dimensions=levels, require_spacing=lambda: (SPACING_UM, SPACING_UM)
    )
    settings = TilingSettings(SPACING_UM, SIDE, min_tissue=0.5)

    def ours() -> int:
        return len(tile_slide(slide, found, settings, slide_id="s").coords)  # type: ignore[arg-type]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        np.save(root / "mask.npy", mask)
        # Polygons simplified as little as the mask allows, valid, one a piece of tissue.
        polygons = [polygon.wkt for polygon in mask_polygons(mask, scale)]
        (root / "polygons.json").write_text(json.dumps(polygons))
        tile = encode_tile(tissue_picture(SIDE, SIDE, [(0, 0, SIDE, SIDE)]), quality=80)
        path = write_repeated_tile_tiff(
            root / "slide.tif", WIDTH // SIDE, HEIGHT // SIDE, tile, mpp=SPACING_UM
        )
        arguments = {
            "hs2p": [str(root / "mask.npy"), str(WIDTH), str(HEIGHT), str(SPACING_UM), str(SIDE)],
            "lazyslide": [str(path), str(root / "polygons.json"), str(SPACING_UM), str(SIDE)],
        }
        mine, peers, notes = np.inf, {}, {}
        for _ in range(ROUNDS):
            mine = min(mine, best_seconds(ours, repeats=5))
            for peer, given in arguments.items():
                if peer in notes and peer not in peers:
                    continue
                try:
                    result = run_peer(peer, "coordinates", *given)
                    peers[peer] = min(peers.get(peer, np.inf), result["seconds"])
                    notes[peer] = f"{ours()} tiles; {peer} {result['n_tiles']} tiles"
                    if "seconds_tiles_only" in result:
                        notes[peer] += f", {result['seconds_tiles_only']:.3f} s of it without its contours"
                except PeerMissing as error:
                    notes[peer] = str(error)
        for peer in arguments:
            rows.append(
                compare(
                    "tile coordinates of a 100k x 80k slide", float(mine), "s", peer, peers.get(peer),
                    must_reach=1.0, lower_is_better=True, note=notes[peer],
                )
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    main(measure, __doc__)

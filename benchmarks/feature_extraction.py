"""Feature extraction on a CPU, end to end, against the encoder's forward pass alone.

End to end is ``extract_slide`` from a slide and its coordinates to the finished file: opening, reading and
decoding the tiles, normalising, encoding, checking, hashing the slide, writing file and sidecar. The encoder
(EfficientNet-Lite0) is loaded before. The forward pass alone gets the same number of normalised tiles from
memory, in the same chunks. Both compute in one thread; end to end, a second thread reads ahead and a third
hashes the slide, so it needs a second core for a moment here and there. The slide is one of the lung cohort
where that folder is beside the checkout, else a generated one of the same size and format; it is tiled with
half a tile of overlap, as it is small. Both works take turns; the best of the turns counts.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from bench import Row, compare, main

from acpbench.core.files import sha256_file
from acpbench.features.encoders import CPU_CHUNK_TILES, TorchEncoder, load_encoder
from acpbench.features.extract import extract_slide
from acpbench.features.registry import load_registry
from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.geometry import plan_tiles
from acpbench.slides.reader import open_slide

ROOT = Path(__file__).resolve().parents[1]
TILE_PX, STRIDE_PX, SPACING_UM, ROUNDS = 224, 112, 0.5, 6


def measure() -> list[Row]:
    import torch

    torch.set_num_threads(1)
    spec = load_registry(ROOT / "config" / "encoders.yaml")["efficientnet_lite0"]
    encoder = load_encoder(spec, device="cpu")
    assert isinstance(encoder, TorchEncoder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slide, what = _slide(folder)
        n = _tile(slide, folder / f"{slide.stem}.coords.h5")
        tiles = np.random.default_rng(0).integers(0, 256, (CPU_CHUNK_TILES, TILE_PX, TILE_PX, 3), np.uint8)
        images = encoder._normalise(encoder.prepare(tiles))

        def alone() -> None:
            with torch.inference_mode():
                for _ in range(-(-n // CPU_CHUNK_TILES)):
                    encoder.forward(images)

        def whole() -> None:
            out = folder / "out" / f"{slide.stem}.h5"
            coords = folder / f"{slide.stem}.coords.h5"
            assert extract_slide(slide, coords, encoder, out)["cache"] == "miss"
            out.with_name(out.name + ".json").unlink()

        alone()  # warm-up
        wall: dict[str, list[float]] = {"alone": [], "whole": []}
        busy: dict[str, list[float]] = {"alone": [], "whole": []}
        for turn in range(ROUNDS):
            for key, work in (("alone", alone), ("whole", whole))[:: 1 if turn % 2 else -1]:
                start, cpu = time.perf_counter(), time.thread_time()
                work()
                wall[key].append(time.perf_counter() - start)
                busy[key].append(time.thread_time() - cpu)
    note = f"{n} tiles of {what}; one compute thread each, reading ahead in a second; {os.cpu_count()} cores"
    rate = {key: n / min(values) for key, values in wall.items()}
    cpu_rate = {key: n / min(values) for key, values in busy.items()}
    return [
        compare("features on CPU, end to end (EfficientNet-Lite0)", rate["whole"], "tiles/s",
                "its forward pass alone", rate["alone"], must_reach=0.95, note=note),
        compare("the same in CPU time of the computing thread", cpu_rate["whole"], "tiles/CPU-s",
                "its forward pass alone", cpu_rate["alone"],
                note="what other programs on the machine take is not in it, nor is the reading thread"),
    ]  # fmt: skip


def _slide(folder: Path) -> tuple[Path, str]:
    lung = ROOT.parent / "shared" / "data" / "cohorts" / "lung_composite"
    found = sorted(p for p in lung.rglob("*") if p.suffix in (".svs", ".tif", ".tiff"))
    if found:
        return found[0], "a slide of the lung cohort"
    return _generated(folder / "generated.tiff"), "a generated slide"


def _generated(path: Path) -> Path:
    """A tiled JPEG TIFF of 2016 x 2016 px at 0.5 um/px with texture that compresses as tissue does."""
    import tifffile
    from scipy.ndimage import gaussian_filter

    noise = np.random.default_rng(0).standard_normal((2016, 2016, 3))
    pixels = np.clip(190 + 120 * gaussian_filter(noise, (2, 2, 0)), 0, 255).astype(np.uint8)
    tifffile.imwrite(
        path, pixels, tile=(256, 256), compression="jpeg", photometric="rgb",
        resolution=(20_000, 20_000), resolutionunit="CENTIMETER",
    )  # fmt: skip
    return path


def _tile(slide: Path, coords: Path) -> int:
    """The whole grid, tissue or not: the encoder takes as long for either."""
    with open_slide(slide, SPACING_UM) as reader:
        levels = reader.level_dimensions
    plan = plan_tiles(levels, SPACING_UM, SPACING_UM, SPACING_UM, TILE_PX)
    width, height = levels[0]
    corners = [
        (x, y)
        for y in range(0, height - TILE_PX + 1, STRIDE_PX)
        for x in range(0, width - TILE_PX + 1, STRIDE_PX)
    ]
    tiles = TileSet(
        slide_id=slide.stem, slide_sha256=sha256_file(slide), status="ok", reason="", detail="",
        coords=np.array(corners, dtype=np.int64), tissue_fractions=np.ones(len(corners)),
        requested_spacing_um=SPACING_UM, tile_size_px=TILE_PX, plan=plan, mpp_x=SPACING_UM, mpp_y=SPACING_UM,
    )  # fmt: skip
    write_coords(coords, tiles)
    return len(corners)


if __name__ == "__main__":
    main(measure, __doc__)

"""Reading tiles of a JPEG pyramid as RGB arrays on one core, against OpenSlide and other readers.

Each pass opens the slide anew and reads the same tiles one by one in row order. OpenSlide is read through its
own Python interface, converted to RGB, and shrunk with the same area filter where tiles are shrunk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from bench import HERE, PeerMissing, Row, compare, main, run_peer

from acpbench.slides.coords import read_tile
from acpbench.slides.geometry import TilePlan, plan_tiles
from acpbench.slides.reader import open_slide

SIDE = 256
COLUMNS, LINES = 32, 24
ROUNDS = 4
PEERS = {
    "fastslide": ("fastslide", ()),
    "tiffslide": ("tiffslide", ()),
    "hs2p (OpenSlide)": ("hs2p", ("openslide",)),
    "hs2p (libvips)": ("hs2p", ("vips",)),
}
REAL_SLIDES = {
    # What is read → (slide below the data folder, side of its tiles, passes: few tiles need more).
    "CMU-1-Small-Region, 240 px, RGB JPEG": ("slides/CMU-1-Small-Region.svs", 240, 6),
    "a lung slide, 256 px, YCbCr 4:2:0 JPEG": ("cohorts/lung_composite/slides/LUAD000-1.svs", 256, 12),
}
STORED_SAMPLES = "hs2p's reader of stored samples (tifffile)"
"""Not one hs2p reads slides with by itself: it is meant for label masks and has to be named."""


def picture(shared: Path) -> np.ndarray:
    """Real stained tissue when the data folder is there, synthetic texture else; uint8 (H, W, 3)."""
    height, width = LINES * SIDE, COLUMNS * SIDE
    region = shared / "slides" / "CMU-1-Small-Region.svs"
    if region.is_file():
        with open_slide(region) as reader:
            source = reader.read_region(0, 0, 0, *reader.dimensions)
    else:
        from scipy.ndimage import gaussian_filter

        noise = np.random.default_rng(0).normal(0, 60, (1024, 1024, 3))
        source = np.clip(gaussian_filter(noise, (1.5, 1.5, 0)) * 3 + (190, 120, 170), 0, 255).astype(np.uint8)
    repeats = (-(-height // source.shape[0]), -(-width // source.shape[1]), 1)
    return np.tile(source, repeats)[:height, :width]


def write_slide(path: Path, rgb: np.ndarray) -> None:
    """A tiled pyramid of 256 px JPEG tiles, quality 85, YCbCr 4:2:0, 0.25 um/px."""
    import tifffile
    from PIL import Image

    options = {
        "tile": (SIDE, SIDE), "photometric": "ycbcr", "subsampling": (2, 2), "compression": "jpeg",
        "compressionargs": {"level": 85}, "resolution": (40000, 40000), "resolutionunit": "CENTIMETER",
    }  # fmt: skip
    with tifffile.TiffWriter(path) as tiff:
        for factor in (1, 4):
            small = Image.fromarray(rgb).resize((rgb.shape[1] // factor, rgb.shape[0] // factor))
            tiff.write(np.asarray(small.convert("YCbCr")), subfiletype=int(factor > 1), **options)


def ours(path: Path, positions: list[tuple[int, int]], plan: TilePlan) -> Iterable[np.ndarray]:
    with open_slide(path) as reader:
        read_tile(reader, 0, 0, plan)
        yield np.zeros(0)  # opened; the clock starts here
        for x, y in positions:
            yield read_tile(reader, x, y, plan)


def by_openslide(path: Path, positions: list[tuple[int, int]], plan: TilePlan) -> Iterable[np.ndarray]:
    import openslide
    from PIL import Image

    size, side = (plan.read_width_px, plan.read_height_px), (plan.tile_size_px, plan.tile_size_px)
    with openslide.OpenSlide(path) as slide:
        slide.read_region((0, 0), plan.level, size)
        yield np.zeros(0)
        for x, y in positions:
            image = slide.read_region((x, y), plan.level, size).convert("RGB")
            yield np.asarray(image if size == side else image.resize(side, Image.Resampling.BOX))


def seconds(read: Callable[..., Iterable[np.ndarray]], *arguments: object) -> float:
    tiles = iter(read(*arguments))
    next(tiles)
    start = time.perf_counter()
    for _ in tiles:
        pass
    return time.perf_counter() - start


def decoding_alone(path: Path, positions: list[tuple[int, int]], plan: TilePlan) -> Iterable[np.ndarray]:
    """The tiles' JPEG streams, in memory and whole, decoded one after the other into one buffer.

    The least that exact pixels of libjpeg-turbo can cost: no file, no check, no new memory.
    """
    import simplejpeg
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        page, handle = tiff.pages[0], tiff.filehandle
        streams = []
        for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
            handle.seek(offset)
            streams.append(
                page.jpegtables[:-2] + handle.read(count)[2:] if page.jpegtables else handle.read(count)
            )
    buffer = bytearray(plan.tile_size_px**2 * 3)
    yield np.zeros(0)
    for stream in streams:
        yield simplejpeg.decode_jpeg(stream, buffer=buffer)


def largest_difference(path: Path, positions: list[tuple[int, int]], plan: TilePlan) -> int:
    both = zip(ours(path, positions, plan), by_openslide(path, positions, plan), strict=True)
    return max(int(np.abs(a.astype(np.int16) - b).max(initial=0)) for a, b in both)


STREAM = """
import sys, time
import numpy as np
from acpbench.slides.coords import TileSet, read_tiles
from acpbench.slides.geometry import plan_tiles, tile_grid
from acpbench.slides.reader import open_slide
with open_slide(sys.argv[1]) as reader:
    plan = plan_tiles(reader.level_dimensions, 0.25, 0.25, 0.25, 256)
    coords = tile_grid(*reader.dimensions, plan)
tiles = TileSet("s", "", "ok", "", "", coords, np.ones(len(coords)), 0.25, 256, plan, 0.25, 0.25)
start = time.perf_counter()
n = sum(len(batch.pixels) for batch in read_tiles(sys.argv[1], tiles))
seconds = time.perf_counter() - start
# Not ru_maxrss: that one remembers the size of the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(n, seconds, int(peak.split()[1]) / 1024)
"""


def streamed(folder: Path) -> Row:
    """A slide of 200,000 tiles through the stream that extraction uses, in a process of its own."""
    sys.path.insert(0, str(HERE.parent))
    from tests.slides.pictures import encode_tile, tissue_picture, write_repeated_tile_tiff

    tile = encode_tile(tissue_picture(SIDE, SIDE, [(0, 0, SIDE, SIDE)]), quality=80)
    path = write_repeated_tile_tiff(folder / "large.tif", 500, 400, tile)
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True
    )
    count, taken, peak_mib = (float(part) for part in done.stdout.split())
    return Row(
        "200k-tile slide streamed: 4 GiB over peak memory",
        4096 / peak_mib,
        "times",
        must_reach=1.0,
        note=f"{count:,.0f} tiles, peak {peak_mib:.0f} MiB, {count / taken:,.0f} tiles/s",
    )


def real_slides(shared: Path) -> list[Row]:
    """The stored tiles of real slides, against OpenSlide and the fastest slide reader among the peers."""
    rows = []
    for name, (below, side, passes) in REAL_SLIDES.items():
        path = shared / below
        if not path.is_file():
            continue
        with open_slide(path) as reader:
            plan = plan_tiles(reader.level_dimensions, reader.mpp_x, reader.mpp_y, reader.mpp_x, side)
            width, height = reader.dimensions
        tiles = [(x, y) for y in range(0, height - side + 1, side) for x in range(0, width - side + 1, side)]
        mine, theirs, fastslide, missing = np.inf, np.inf, np.inf, ""
        for _ in range(passes):
            mine = min(mine, seconds(ours, path, tiles, plan))
            theirs = min(theirs, seconds(by_openslide, path, tiles, plan))
        try:
            arguments = (str(path), json.dumps(tiles), str(side), str(passes))
            fastslide = run_peer("fastslide", "read", *arguments)["seconds"]
        except PeerMissing as error:
            missing = str(error)
        note = f"one core; largest difference {largest_difference(path, tiles, plan)}"
        n, work = len(tiles), f"aligned tiles of {name}"
        rows.append(compare(work, n / mine, "tiles/s", "openslide", n / theirs, must_reach=5.0, note=note))
        rate = None if missing else n / fastslide
        rows.append(compare(work, n / mine, "tiles/s", "fastslide", rate, must_reach=2.0, note=missing))
    return rows


def measure() -> list[Row]:
    """Rows for aligned, unaligned and shrunk tiles."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, for the peers' processes too
    shared = Path(os.environ.get("ACPBENCH_SHARED_DATA") or HERE.parent.parent / "shared" / "data")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slide.tif"
        write_slide(path, picture(shared))
        with open_slide(path) as reader:
            levels = reader.level_dimensions
        native, shrunk = plan_tiles(levels, 0.25, 0.25, 0.25, SIDE), plan_tiles(levels, 0.25, 0.25, 0.5, SIDE)
        aligned = [(x * SIDE, y * SIDE) for y in range(LINES) for x in range(COLUMNS)]
        shifted = [
            (x + 100, y + 36) for x, y in aligned if x < (COLUMNS - 1) * SIDE and y < (LINES - 1) * SIDE
        ]
        wide = [(x * 2, y * 2) for x, y in aligned if x < COLUMNS // 2 * SIDE and y < LINES // 2 * SIDE]
        works = {
            "aligned 256 px tiles": (aligned, native, 5.0),
            "unaligned 256 px tiles": (shifted, native, 1.0),
            "512 px shrunk to 256": (wide, shrunk, 1.0),
        }
        best: dict[str, list[float]] = {name: [np.inf, np.inf] for name in works}
        floor = np.inf
        peers: dict[str, float] = {}
        missing: dict[str, str] = {}
        for _ in range(ROUNDS):
            for name, (positions, plan, _) in works.items():
                for column, read in enumerate((ours, by_openslide)):
                    best[name][column] = min(best[name][column], seconds(read, path, positions, plan))
            floor = min(floor, seconds(decoding_alone, path, aligned, native))
            for name, (peer, options) in {**PEERS, STORED_SAMPLES: ("hs2p", ("tifffile",))}.items():
                if name not in missing:
                    try:
                        arguments = (str(path), json.dumps(aligned), str(SIDE), "1", *options)
                        took = run_peer(peer, "read", *arguments)["seconds"]
                        peers[name] = min(peers.get(name, np.inf), took)
                    except PeerMissing as error:
                        missing[name] = str(error)
        rows = [streamed(Path(folder))]
        for name, (positions, plan, target) in works.items():
            mine, theirs = (len(positions) / taken for taken in best[name])
            note = f"one core; largest difference {largest_difference(path, positions, plan)}"
            rows.append(compare(name, mine, "tiles/s", "openslide", theirs, must_reach=target, note=note))
    mine = len(aligned) / best["aligned 256 px tiles"][0]
    rows.append(
        compare(
            "aligned 256 px tiles", mine, "tiles/s", "the decoder alone", len(aligned) / floor,
            note="JPEG streams in memory, decoded by libjpeg-turbo into one buffer: no reader is faster",
        )
    )  # fmt: skip
    fastest = min((name for name in peers if name in PEERS), key=lambda name: peers[name], default=None)
    for name in (*PEERS, STORED_SAMPLES):
        rate = len(aligned) / peers[name] if name in peers else None
        rows.append(
            compare(
                "aligned 256 px tiles", mine, "tiles/s", name, rate,
                must_reach=2.0 if name == fastest else None,
                note=missing.get(name, "the fastest slide reader among the peers" if name == fastest else ""),
            )
        )  # fmt: skip
    return rows + real_slides(shared)


if __name__ == "__main__":
    main(measure, __doc__)

"""SIGKILL at any moment of an extraction leaves nothing that a later run trusts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from acpbench.core.files import sha256_file
from acpbench.features.encoders import load_encoder
from acpbench.features.extract import extract_slide
from acpbench.features.registry import load_registry
from acpbench.features.store import is_complete, read_features
from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.geometry import plan_tiles

SIDE, ACROSS = 32, 24
MOMENTS = ["encoding", "hdf5_open", "hdf5_half", "before_rename", "before_sidecar", "sidecar_half"]

CHILD = """
import os, signal, sys, time
import h5py, numpy as np
import acpbench.features.store as store
from acpbench.core import files
from acpbench.features.encoders import ColorStats, load_encoder
from acpbench.features.extract import extract_slide
from acpbench.features.registry import load_registry

moment, root, repository = sys.argv[1:4]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)

if moment == "encoding":
    real, calls = ColorStats.encode, []
    def encode(self, batch):
        calls.append(1)
        return die() if len(calls) == 3 else real(self, batch)
    ColorStats.encode = encode
elif moment in ("hdf5_open", "hdf5_half"):
    real = h5py.Group.create_dataset
    def create(self, name, **options):
        if moment == "hdf5_open":
            die()
        dataset = real(self, name, **options)
        self.file.flush()
        die()
    h5py.Group.create_dataset = create
elif moment == "before_rename":
    os.replace = lambda *a: die()
elif moment == "before_sidecar":
    store.write_json = lambda *a: die()
elif moment == "sidecar_half":
    real = os.replace
    def replace(source, target):
        if str(target).endswith(".json"):
            with open(source, "r+b") as handle:
                handle.truncate(20)
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)
    files.os.replace = replace
registry = load_registry(repository + "/config/encoders.yaml")
extract_slide(root + "/slide.png", root + "/coords.h5", load_encoder(registry["color_stats"]),
              root + "/out/s1.h5", batch_size=64)
"""


@pytest.fixture
def slide(tmp_path):
    """A picture of 576 tiles at 0.5 um/px and its coordinates."""
    size = SIDE * ACROSS
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "slide.png")
    corners = [[x, y] for y in range(0, size, SIDE) for x in range(0, size, SIDE)]
    tiles = TileSet(
        slide_id="s1", slide_sha256=sha256_file(tmp_path / "slide.png"), status="ok", reason="", detail="",
        coords=np.array(corners, dtype=np.int64), tissue_fractions=np.ones(len(corners)),
        requested_spacing_um=0.5, tile_size_px=SIDE, plan=plan_tiles(((size, size),), 0.5, 0.5, 0.5, SIDE),
        mpp_x=0.5, mpp_y=0.5,
    )  # fmt: skip
    write_coords(tmp_path / "coords.h5", tiles)
    return tmp_path


def again(root, repository):
    """What a later run makes in the place of whatever was left."""
    encoder = load_encoder(load_registry(repository / "config" / "encoders.yaml")["color_stats"])
    return extract_slide(root / "slide.png", root / "coords.h5", encoder, root / "out" / "s1.h5")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("older", [False, True], ids=["first", "over_an_older_file"])
def test_killed_at_a_chosen_moment(slide, repository, moment, older) -> None:
    out = slide / "out" / "s1.h5"
    if older:  # of other coordinates: the whole file is there, under another key
        from acpbench.slides.coords import read_coords

        whole = read_coords(slide / "coords.h5")
        few = TileSet(**{**vars(whole), "coords": whole.coords[:5], "tissue_fractions": np.ones(5)})
        write_coords(slide / "coords.h5", few)
        assert again(slide, repository)["n_tiles"] == 5
        write_coords(slide / "coords.h5", whole)
    done = subprocess.run([sys.executable, "-c", CHILD, moment, str(slide), str(repository)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    if older and moment == "encoding":
        assert is_complete(out)  # the older one, untouched, whose key is not the new one's
    else:
        assert not is_complete(out)
    result = again(slide, repository)
    assert result["cache"] == "miss" and result["n_tiles"] == ACROSS**2
    first = out.read_bytes()
    assert again(slide, repository)["cache"] == "hit" and out.read_bytes() == first
    assert len(read_features(out).features) == ACROSS**2


def test_killed_at_any_time(slide, repository) -> None:
    """Without a chosen moment: the process is shot while it extracts over and over."""
    code = CHILD.replace("extract_slide(", "while True:\n    print('.', flush=True)\n    extract_slide(", 1)
    code = code.replace("batch_size=64)", 'batch_size=64)\n    os.unlink(root + "/out/s1.h5.json")')
    for delay in (0.02, 0.05, 0.09, 0.14, 0.2):
        child = subprocess.Popen(
            [sys.executable, "-c", code, "none", str(slide), str(repository)], stdout=subprocess.PIPE
        )
        child.stdout.read(1)
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        out = slide / "out" / "s1.h5"
        if is_complete(out):  # only ever a whole one
            assert len(read_features(out).features) == ACROSS**2
    assert again(slide, repository)["n_tiles"] == ACROSS**2

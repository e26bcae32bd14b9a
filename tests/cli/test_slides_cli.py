"""``acp-bench slides`` on the command line."""

import json
import sys

import h5py
import numpy as np
import pytest

from acpbench.cli.main import main
from tests.slides.pictures import tissue_picture, write_pyramid


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["acp-bench", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def slide(tmp_path):
    picture = tissue_picture(1024, 768, [(256, 128, 512, 512)])
    return write_pyramid(tmp_path / "AAA.BBB.tif", picture, sizes=[(512, 384)])


def test_inspect_table_and_json(call, slide, tmp_path):
    code, out, err = call("slides", "inspect", slide)
    assert (code, err) == (0, "")
    assert "AAA.BBB" in out and "1024x768, 512x384" in out and "ok" in out
    code, out, err = call("slides", "inspect", slide, "--format", "json", "--output-dir", tmp_path / "out")
    assert json.loads(out)["slide_id"] == "AAA.BBB"
    assert json.loads(out) == json.loads((tmp_path / "out" / "quality.json").read_text())


def test_inspect_bad_slide_reports_and_missing_file_fails(call, tmp_path):
    (tmp_path / "x.svs").write_bytes(b"rubbish")
    code, out, _ = call("slides", "inspect", tmp_path / "x.svs")
    assert code == 0 and "unreadable" in out
    code, out, err = call("slides", "inspect", tmp_path / "none.svs")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "none.svs" in err


def test_tile_writes_coordinates_and_prints_the_triad(call, slide, tmp_path):
    output = tmp_path / "coords.h5"
    code, out, err = call(
        "slides", "tile", slide, "--spacing-um", 1, "--tile-size-px", 64, "--output", output
    )
    assert (code, err) == (0, "")
    for word in ("requested", "read", "effective", "16 kept of 48"):
        assert word in out
    with h5py.File(output) as handle:
        assert handle["coords"].shape == (16, 2) and handle["coords"].dtype == np.int64
        assert handle["coords"].attrs["requested_spacing_um"] == 1.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--spacing-um", "0.25", "--tile-size-px", "64"], "too_coarse"),
        (["--spacing-um", "1", "--tile-size-px", "4096"], "too_few_tiles"),
        (["--spacing-um", "1", "--tile-size-px", "64", "--min-tiles", "17"], "too_few_tiles"),
        (["--spacing-um", "1", "--tile-size-px", "64", "--mpp", "1000"], "no_mpp"),
    ],
)
def test_slides_that_cannot_be_tiled_exit_with_2_and_one_line(call, slide, tmp_path, options, reason):
    code, out, err = call("slides", "tile", slide, "--output", tmp_path / "c.h5", *options)
    assert (code, out) == (2, "")
    assert reason in err and err.count("\n") == 1
    assert not (tmp_path / "c.h5").exists()


def test_spacing_can_be_declared(call, tmp_path):
    path = write_pyramid(tmp_path / "a.tif", tissue_picture(512, 512, [(0, 0, 512, 512)]), mpp=None)
    arguments = (
        "slides",
        "tile",
        path,
        "--spacing-um",
        1,
        "--tile-size-px",
        64,
        "--output",
        tmp_path / "c.h5",
    )
    assert call(*arguments)[0] == 2
    assert call(*arguments, "--mpp", 0.5)[0] == 0


@pytest.mark.parametrize(
    "bad",
    [
        ["--spacing-um", "0"],
        ["--spacing-um", "nan"],
        ["--spacing-um", "inf"],
        ["--spacing-um", "1e307"],
        ["--output", "/"],
        ["--min-tissue", "2"],
        ["--tile-size-px", "0"],
    ],
)
def test_bad_options(call, slide, tmp_path, bad):
    base = [
        "slides",
        "tile",
        slide,
        "--spacing-um",
        "1",
        "--tile-size-px",
        "64",
        "--output",
        tmp_path / "c.h5",
    ]
    code, _, err = call(*base, *bad)
    assert code == 2 and "Traceback" not in err

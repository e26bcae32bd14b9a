"""Crops of a slide: the right pixels, at the right spacing, of the tissue image alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from acpbench.harness.context import RunContext
from acpbench.harness.registry import call_tool
from tests.harness.build import Side

SIDE_PX = 1024


@pytest.fixture
def gradient() -> np.ndarray:
    """(1024, 1024, 3): red grows with x, green with y."""
    ramp = np.arange(SIDE_PX) // 4
    rgb = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    rgb[..., 0], rgb[..., 1], rgb[..., 2] = ramp[None, :], ramp[:, None], 200
    return rgb


@pytest.fixture
def context(side: Side, gradient: np.ndarray) -> RunContext:
    side.draw_slide("S00", gradient)
    return side.context()


def region(context: RunContext, **changes: Any) -> dict[str, Any]:
    args = {"slide_id": "S00", "x_level0": 100, "y_level0": 200, "spacing_um": 0.5, "width_px": 64,
            "height_px": 32}  # fmt: skip
    return call_tool(context, "read_region", args | changes)


def pixels(context: RunContext, answer: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(context.path(answer["outputs"][0]["path"])))


def test_at_the_slides_own_spacing_the_pixels_are_those_of_the_slide(
    context: RunContext, gradient: np.ndarray
) -> None:
    answer = region(context)
    assert answer["exit_status"] == "ok", answer["error"]
    np.testing.assert_array_equal(pixels(context, answer), gradient[200:232, 100:164])
    result = answer["result"]
    assert (result["width_level0"], result["height_level0"]) == (64.0, 32.0)
    assert (result["spacing_x_um"], result["spacing_y_um"], result["level"]) == (0.5, 0.5, 0)


def test_at_four_times_the_spacing_every_pixel_is_the_mean_of_sixteen(
    context: RunContext, gradient: np.ndarray
) -> None:
    answer = region(context, spacing_um=2.0)
    expected = gradient[200 : 200 + 128, 100 : 100 + 256].reshape(32, 4, 64, 4, 3).mean(axis=(1, 3))
    assert np.abs(pixels(context, answer).astype(float) - expected).max() <= 1.0
    assert answer["result"]["spacing_x_um"] == 2.0
    assert answer["result"]["width_level0"] == 256.0


def test_a_jpeg_is_a_jpeg(context: RunContext, gradient: np.ndarray) -> None:
    answer = region(context, format="jpeg")
    (output,) = answer["outputs"]
    assert output["path"] == "outputs/round_0/regions/S00_x100_y200_0.5um_64x32.jpg"
    assert Image.open(context.path(output["path"])).format == "JPEG"
    assert np.abs(pixels(context, answer).astype(int) - gradient[200:232, 100:164]).mean() < 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_level0": 961}, ["leaves the slide of 1024 x 1024", "64 x 32"]),
        ({"y_level0": 1000}, ["leaves the slide"]),
        ({"spacing_um": 20}, ["leaves the slide", "2560 x 1280"]),
        ({"spacing_um": 0.25}, ["0.5 um/px", "never upsampled"]),
        ({"slide_id": "S01"}, ["S01.svs", "does not exist"]),
        ({"slide_id": "../S00"}, ["not a usable slide"]),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(
    context: RunContext, side: Side, changes: dict[str, Any], words: list[str]
) -> None:
    answer = region(context, **changes)
    assert answer["exit_status"] == "error"
    for word in words:
        assert word in answer["error"]
    assert str(side.root) not in answer["error"]
    assert not list(context.workspace.rglob("*.png"))


def test_the_last_column_and_row_are_inside(context: RunContext, gradient: np.ndarray) -> None:
    answer = region(context, x_level0=960, y_level0=992)
    np.testing.assert_array_equal(pixels(context, answer), gradient[992:, 960:])


def test_the_label_image_of_a_slide_file_is_in_no_pixel_and_no_metadata(side: Side) -> None:
    from acpbench.slides.synthetic_write import write_aperio

    path = side.root / "evaluator" / "files" / "S00.svs"
    path.parent.mkdir(parents=True)
    rgb = np.full((SIDE_PX, SIDE_PX, 3), (225, 170, 200), np.uint8)
    write_aperio(path, rgb, "NAME OF A PATIENT")
    import openslide

    with openslide.OpenSlide(str(path)) as slide:
        assert "label" in slide.associated_images
    context = side.context()
    answer = region(context, x_level0=0, y_level0=0, spacing_um=2.0, width_px=256, height_px=256)
    assert answer["exit_status"] == "ok", answer["error"]
    assert np.abs(pixels(context, answer).astype(int) - (225, 170, 200)).max() < 12
    written = context.path(answer["outputs"][0]["path"])
    assert Image.open(written).info == {}
    assert b"PATIENT" not in written.read_bytes()


def test_a_real_slide_can_be_cropped(side: Side, shared_data: Path) -> None:
    slide = shared_data / "slides" / "CMU-1-Small-Region.svs"
    if not slide.is_file():
        pytest.skip("no CMU-1-Small-Region.svs in the folder with real data")
    target = side.root / "evaluator" / "files" / "S00.svs"
    target.parent.mkdir(parents=True)
    target.symlink_to(slide)
    import openslide

    with openslide.OpenSlide(str(slide)) as reader:
        expected = np.asarray(reader.read_region((950, 1200), 0, (256, 128)).convert("RGB")).astype(int)
    context = side.context()
    answer = region(context, x_level0=950, y_level0=1200, width_px=256, height_px=128)
    assert answer["exit_status"] == "ok", answer["error"]
    assert np.abs(pixels(context, answer).astype(int) - expected).mean() < 1
    assert answer["result"]["mean_saturation"] > 0.05

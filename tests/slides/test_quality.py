"""Artefact screens."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from acpbench.slides.inspect import inspect_slide
from acpbench.slides.quality import blur_report, fold_mask, laplacian_ratio, pen_masks, screen_slide
from acpbench.slides.reader import open_slide
from acpbench.slides.tiling import TilingSettings, tile_file
from acpbench.slides.tissue import TissueSettings
from tests.slides.pictures import tissue_picture, write_pyramid

INK = {"green": (40, 150, 70), "blue": (30, 60, 200), "black": (25, 25, 28)}


@pytest.mark.parametrize("colour", INK)
def test_pen_is_told_by_colour_and_h_and_e_is_not_pen(colour):
    picture = tissue_picture(200, 200, [(100, 0, 100, 200)])
    picture[80:100, 20:90] = INK[colour]
    masks = pen_masks(picture, 8.0)
    for name, mask in masks.items():
        assert mask[85:95, 25:85].all() if name == colour else not mask.any()
    assert not masks[colour][:, 100:].any()


@pytest.mark.parametrize(
    "stain", [(205, 130, 180), (90, 60, 140), (60, 40, 110), (170, 40, 70), (220, 90, 140)]
)
def test_stains_are_not_pen(stain):
    picture = np.full((100, 100, 3), 245, np.uint8)
    picture[20:80, 20:80] = stain
    assert not any(mask.any() for mask in pen_masks(picture, 8.0).values())


def test_specks_of_pigment_are_not_pen():
    picture = tissue_picture(200, 200, [(0, 0, 200, 200)])
    picture[50:55, 50:55] = INK["black"]  # 40 um
    assert not pen_masks(picture, 8.0)["black"].any()


def test_fold_is_darker_and_more_saturated_than_the_rest():
    picture = tissue_picture(200, 200, [(0, 0, 200, 200)])
    picture[90:110, 20:180] = (90, 20, 70)  # saturation 0.78, value 0.35
    tissue = np.ones((200, 200), bool)
    folds = fold_mask(picture, tissue, 8.0)
    assert folds[95:105, 30:170].all()
    assert not folds[:80].any() and not folds[120:].any()
    assert not fold_mask(picture, np.zeros((200, 200), bool), 8.0).any()


def test_laplacian_ratio_of_hand_worked_pictures():
    stripes = np.tile(np.array([0.0, 100.0]), (8, 4))
    # Each inner pixel has two equal and two opposite neighbours: |Laplacian| = 200, variance 200^2;
    # the picture's variance is 50^2.
    assert laplacian_ratio(stripes) == pytest.approx(16.0)
    assert laplacian_ratio(np.full((8, 8), 7.0)) is None


def test_blurred_half_is_found(tmp_path):
    rng = np.random.default_rng(0)
    cells = np.kron(rng.normal(0, 40, (56, 112)), np.ones((8, 8)))[..., None]
    sharp = np.clip(np.asarray((205, 130, 180)) + cells, 0, 255)
    picture = sharp.copy()
    picture[:, 448:] = gaussian_filter(sharp[:, 448:], (4, 4, 0))
    path = write_pyramid(tmp_path / "a.tif", picture.astype(np.uint8), mpp=(1.0, 1.0))
    with open_slide(path) as reader:
        report = blur_report(reader, np.ones((56, 112), bool), (8.0, 8.0))
    assert (report.n_tiles, report.n_blurred, report.n_unreadable) == (8, 4, 0)
    assert report.fraction == 0.5


def test_blur_is_missing_not_zero_where_it_cannot_be_measured(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", tissue_picture(300, 300, [(0, 0, 300, 300)]), mpp=(2.0, 2.0))
    with open_slide(path) as reader:
        report = blur_report(reader, np.ones((30, 30), bool), (10.0, 10.0))
    assert report.fraction is None and report.note


def test_screen_takes_pen_out_of_the_tissue(tmp_path):
    picture = tissue_picture(1200, 800, [(100, 100, 800, 600)])
    picture[300:360, 150:850] = INK["green"]
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(2.0, 2.0), sizes=[(600, 400), (300, 200)])
    with open_slide(path) as reader:
        screen = screen_slide(reader)
    assert screen.pens["green"].any()
    assert not (screen.tissue.mask & screen.pen).any()
    at = [tuple(int(v / s) for v, s in zip((500, y), screen.overview.scale)) for y in (200, 330, 500)]
    assert [bool(screen.tissue.mask[y, x]) for x, y in at] == [True, False, True]
    assert screen.spacing_um == pytest.approx(2.0 * screen.overview.scale[0], rel=0.01)


def test_tissue_wholly_under_pen_had_been_found(tmp_path):
    picture = np.full((800, 800, 3), 245, np.uint8)
    picture[200:600, 200:600] = INK["blue"]
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(2.0, 2.0))
    with open_slide(path) as reader:
        screen = screen_slide(reader)
    assert screen.found_before_removal and not screen.tissue.mask.any()


def test_folds_are_taken_out_when_asked_and_otherwise_reported(tmp_path):
    picture = tissue_picture(1200, 800, [(100, 100, 1000, 600)])
    picture[300:360, 150:1050] = (90, 20, 70)
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(2.0, 2.0))
    with open_slide(path) as reader:
        kept = screen_slide(reader)
        removed = screen_slide(reader, TissueSettings(remove=("pen", "fold")))
    assert kept.folds.any() and (kept.tissue.mask & kept.folds).any()
    assert not (removed.tissue.mask & removed.folds).any()
    assert removed.tissue.mask.sum() == pytest.approx(kept.tissue.mask.sum() - kept.folds.sum(), rel=0.01)


def test_ink_stays_when_it_is_not_to_be_removed(tmp_path):
    picture = np.full((800, 800, 3), 245, np.uint8)
    picture[200:600, 200:600] = INK["blue"]
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(2.0, 2.0))
    with open_slide(path) as reader:
        screen = screen_slide(reader, TissueSettings(remove=()))
    assert screen.pens["blue"].any() and screen.tissue.fraction == pytest.approx(0.25, rel=0.1)


def test_a_slide_emptied_by_removing_artefacts_says_so_and_not_that_it_was_empty(tmp_path):
    # The only piece of tissue lies under one air bubble, a grey ring of 600 um radius.
    picture = tissue_picture(400, 400, [(170, 170, 60, 60)])
    y, x = np.mgrid[:400, :400]
    picture[np.abs(np.hypot(x - 200, y - 200) - 75) < 2] = 110
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(8.0, 8.0))
    kept = inspect_slide(path, slide_id="a").quality
    assert kept["status"] == "ok" and kept["counts"]["n_bubble_regions"] == 1
    settings = TissueSettings(remove=("pen", "bubble"))
    quality = inspect_slide(path, slide_id="a", settings=settings).quality
    assert (quality["status"], quality["reason"]) == ("emptied_by_filter", "artefact")
    tiles = tile_file(path, TilingSettings(8.0, 16), slide_id="a", tissue_settings=settings)
    assert (tiles.status, tiles.reason) == ("emptied_by_filter", "artefact")


def test_a_blurred_slide_is_kept_with_a_warning(tmp_path):
    rng = np.random.default_rng(0)
    cells = np.kron(rng.normal(0, 40, (112, 112)), np.ones((8, 8)))[..., None]
    picture = gaussian_filter(np.clip(np.asarray((205, 130, 180)) + cells, 0, 255), (5, 5, 0)).astype(
        np.uint8
    )
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(1.0, 1.0))
    quality = inspect_slide(path, slide_id="a").quality
    assert (quality["status"], quality["classes"]["blur"]["fraction"]) == ("ok", 1.0)
    assert "16 of 16 sampled tissue tiles are blurred" in quality["warnings"]
    assert tile_file(path, TilingSettings(1.0, 64), slide_id="a").status == "ok"

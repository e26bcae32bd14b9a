"""Tissue masks and polygons."""

import numpy as np
import pytest

from acpbench.slides.tissue import MIN_SATURATION, TissueSettings, find_tissue
from tests.slides.pictures import tissue_picture


def _overlap(found: np.ndarray, box: tuple[int, int, int, int]) -> float:
    truth = np.zeros_like(found)
    truth[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] = True
    return (found & truth).sum() / (found | truth).sum()


@pytest.mark.parametrize("spacing_um", [2.0, 8.0])
def test_tissue_is_found_where_it_is(spacing_um):
    picture = tissue_picture(200, 160, [(50, 40, 90, 70)])
    tissue = find_tissue(picture, (4.0, 4.0), spacing_um)
    assert _overlap(tissue.mask, (50, 40, 90, 70)) > 0.95
    assert tissue.glass_found and tissue.n_objects == 1
    assert tissue.fraction == pytest.approx(90 * 70 / (200 * 160), rel=0.05)


@pytest.mark.parametrize("noise", [0, 3])
@pytest.mark.parametrize("level", [255, 235])
def test_empty_slide_has_no_tissue(level, noise):
    rng = np.random.default_rng(0)
    picture = np.clip(level + rng.normal(0, noise, (200, 200, 3)), 0, 255).astype(np.uint8)
    tissue = find_tissue(picture, (1.0, 1.0), 8.0)
    assert not tissue.mask.any() and tissue.n_objects == 0


def test_grey_dust_is_not_tissue():
    picture = np.full((200, 200, 3), 245, np.uint8)
    picture[50:100, 50:100] = 120
    assert not find_tissue(picture, (1.0, 1.0), 8.0).mask.any()


def test_slide_that_is_all_tissue_is_not_cut_in_half():
    # Half pale stroma, half dark epithelium: Otsu would part the two.
    picture = np.empty((200, 200, 3), np.uint8)
    picture[:, :100] = (225, 195, 215)
    picture[:, 100:] = (130, 60, 130)
    tissue = find_tissue(picture, (1.0, 1.0), 8.0)
    assert tissue.fraction > 0.99
    assert not tissue.glass_found and tissue.threshold == MIN_SATURATION


@pytest.mark.parametrize("colour", [(230, 205, 222), (205, 130, 180)])
def test_uniform_tissue_with_noise_is_all_tissue(colour):
    rng = np.random.default_rng(0)
    picture = np.clip(np.asarray(colour) + rng.normal(0, 6, (200, 200, 1)), 0, 255).astype(np.uint8)
    assert find_tissue(picture, (1.0, 1.0), 8.0).fraction > 0.99


def test_pale_tissue_beside_dark_tissue_is_kept():
    picture = tissue_picture(300, 200, [(0, 0, 100, 200)])
    picture[:, 100:200] = (232, 200, 222)  # saturation 0.14 against 0.37 of the dark part
    assert find_tissue(picture, (1.0, 1.0), 8.0).fraction == pytest.approx(2 / 3, abs=0.03)


def test_specks_go_small_holes_are_filled_large_ones_stay():
    picture = tissue_picture(300, 300, [(20, 20, 200, 200)])
    picture[50:60, 50:60] = 245  # 80 um hole: 0.0064 mm2
    picture[100:150, 100:150] = 245  # 400 um hole: 0.16 mm2
    picture[260:266, 260:266] = (205, 130, 180)  # 48 um speck
    tissue = find_tissue(picture, (1.0, 1.0), 8.0)
    assert tissue.mask[55, 55] and not tissue.mask[125, 125] and not tissue.mask[262, 262]
    assert tissue.n_objects == 1


def test_ignored_pixels_are_not_tissue():
    picture = tissue_picture(200, 200, [(0, 0, 200, 200)])
    ignore = np.zeros((200, 200), bool)
    ignore[:, :100] = True
    tissue = find_tissue(picture, (1.0, 1.0), 8.0, ignore=ignore)
    assert not tissue.mask[:, :100].any() and tissue.mask[:, 101:].all()


def test_areas_of_pieces_and_holes_are_settings():
    picture = tissue_picture(300, 300, [(20, 20, 200, 200)])
    picture[100:150, 100:150] = 245  # 400 um hole: 160,000 um2
    picture[240:260, 240:260] = (205, 130, 180)  # 160 um piece: 25,600 um2
    default = find_tissue(picture, (1.0, 1.0), 8.0)
    assert default.mask[250, 250] and not default.mask[125, 125]
    assert (
        default.n_objects,
        find_tissue(picture, (1.0, 1.0), 8.0, settings=TissueSettings()).n_objects,
    ) == (2, 2)
    strict = find_tissue(
        picture, (1.0, 1.0), 8.0, settings=TissueSettings(min_area_um2=30_000, max_hole_um2=170_000)
    )
    assert not strict.mask[250, 250] and strict.mask[125, 125] and strict.n_objects == 1


@pytest.mark.parametrize(
    "wrong", [{"min_area_um2": -1}, {"max_hole_um2": float("nan")}, {"remove": ("blur",)}]
)
def test_nonsense_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        TissueSettings(**wrong)

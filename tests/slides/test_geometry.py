"""Hand-worked geometry."""

import numpy as np
import pytest

from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import (
    box_fractions,
    choose_level,
    grid_axes,
    grid_fractions,
    level_downsamples,
    level_position,
    plan_tiles,
    tile_grid,
)

ROUNDED_UP = [(10001, 10001), (5001, 5001), (2501, 2501)]


def test_downsamples_stay_fractional():
    assert level_downsamples([(10001, 300), (5001, 150), (2501, 74)]) == (
        (1.0, 1.0),
        (10001 / 5001, 2.0),
        (10001 / 2501, 300 / 74),
    )


@pytest.mark.parametrize(
    ("requested", "level"), [(0.25, 0), (0.3, 0), (0.49, 0), (0.5, 1), (0.9, 1), (1.0, 2)]
)
def test_levels_rounded_up_are_not_truncated(requested, level):
    assert choose_level(ROUNDED_UP, 0.25, 0.25, requested) == level


def test_level_marginally_coarser_than_requested_is_taken():
    # 40000 / 9999.75 is 4.0001: asked for 1.0 um/px, a strict comparison would fall back to a 4x finer level.
    assert choose_level([(400040, 400040), (100000, 100000)], 0.25, 0.25, 1.0) == 1  # downsample 4.0004


def test_level_beyond_the_tolerance_is_not_taken():
    assert choose_level([(1000, 1000), (480, 480)], 0.25, 0.25, 0.5) == 0  # 0.5208 is 4 % coarser


def test_half_micron_from_a_quarter_micron_slide_without_pyramid():
    plan = plan_tiles([(4000, 3000)], 0.25, 0.25, 0.5, 256)
    assert (plan.level, plan.read_width_px, plan.read_height_px, plan.resized) == (0, 512, 512, True)
    assert plan.read_spacing_x_um == 0.25
    assert plan.effective_spacing_x_um == 0.5
    assert plan.tile_width_level0 == 512.0
    assert len(tile_grid(4000, 3000, plan)) == 7 * 5  # 4000 / 512 = 7.8, 3000 / 512 = 5.9


def test_half_micron_from_level_one():
    plan = plan_tiles([(4000, 3000), (2000, 1500)], 0.25, 0.25, 0.5, 256)
    assert (plan.level, plan.read_width_px, plan.resized) == (1, 256, False)
    assert (plan.read_spacing_x_um, plan.effective_spacing_x_um, plan.tile_width_level0) == (0.5, 0.5, 512.0)


def test_spacing_within_tolerance_is_read_as_it_is_and_says_so():
    plan = plan_tiles([(2220, 2967)], 0.499, 0.499, 0.5, 256)
    assert not plan.resized
    assert (plan.requested_spacing_um, plan.read_spacing_x_um, plan.effective_spacing_x_um) == (
        0.5,
        0.499,
        0.499,
    )
    assert plan.tile_width_level0 == 256.0


def test_effective_spacing_is_what_the_rounded_read_gives():
    plan = plan_tiles([(5000, 5000)], 0.2325, 0.2325, 0.5, 256)
    assert plan.read_width_px == 551  # 256 * 0.5 / 0.2325 = 550.54
    assert plan.effective_spacing_x_um == pytest.approx(551 * 0.2325 / 256, rel=1e-12)
    assert plan.tile_width_level0 == 551.0


def test_anisotropic_pixels_are_read_per_axis():
    plan = plan_tiles([(4000, 4000)], 0.25, 0.2, 0.5, 100)
    assert (plan.read_width_px, plan.read_height_px) == (200, 250)
    assert (plan.effective_spacing_x_um, plan.effective_spacing_y_um) == (0.5, 0.5)
    assert len(tile_grid(4000, 4000, plan)) == 20 * 16


def test_anisotropic_axis_within_tolerance_is_never_upsampled():
    plan = plan_tiles([(4000, 4000)], 0.505, 0.25, 0.5, 100)
    assert (plan.read_width_px, plan.read_height_px) == (100, 200)
    assert plan.effective_spacing_x_um == pytest.approx(0.505)


def test_upsampling_is_refused():
    with pytest.raises(SlideError) as caught:
        plan_tiles([(4000, 4000)], 0.5, 0.5, 0.25, 256)
    assert caught.value.status == "too_coarse"
    assert "0.5 um/px" in str(caught.value)


def test_one_coarse_axis_is_enough_to_refuse():
    with pytest.raises(SlideError):
        plan_tiles([(4000, 4000)], 0.25, 0.6, 0.5, 256)


@pytest.mark.parametrize(
    ("spacing", "size", "mpp"), [(0.0, 256, 0.5), (0.5, 0, 0.5), (0.5, 256, 0.0), (float("nan"), 1, 1)]
)
def test_nonsense_settings_are_refused(spacing, size, mpp):
    with pytest.raises(ValueError, match="must be"):
        plan_tiles([(100, 100)], mpp, mpp, spacing, size)


def test_grid_is_row_major_from_the_corner_and_inside():
    plan = plan_tiles([(25, 31)], 1.0, 1.0, 1.0, 10)
    assert tile_grid(25, 31, plan).tolist() == [[0, 0], [10, 0], [0, 10], [10, 10], [0, 20], [10, 20]]


def test_slide_smaller_than_a_tile_has_no_grid():
    plan = plan_tiles([(9, 30)], 1.0, 1.0, 1.0, 10)
    assert tile_grid(9, 30, plan).shape == (0, 2)
    assert tile_grid(10, 10, plan).tolist() == [[0, 0]]


@pytest.mark.parametrize("width", [10001, 9999, 4443, 2048])
def test_grid_does_not_drift_and_stays_inside(width):
    small = -(-width // 2)
    plan = plan_tiles([(width, width), (small, small)], 0.25, 0.25, 0.5, 64)
    xs = np.unique(tile_grid(width, width, plan)[:, 0])
    exact = np.arange(len(xs)) * plan.tile_width_level0
    assert np.abs(xs - exact).max() < 1.0
    assert xs[-1] + plan.tile_width_level0 <= width + 1e-6
    assert width - (exact[-1] + plan.tile_width_level0) < plan.tile_width_level0
    # Read at the level, the last tile ends inside the level too.
    assert level_position(int(xs[-1]), plan.downsample_x) + plan.read_width_px <= small + 1e-6


def test_same_field_of_view_at_quarter_and_half_micron():
    fine = plan_tiles([(8000, 8000)], 0.25, 0.25, 0.5, 224)
    coarse = plan_tiles([(4000, 4000)], 0.5, 0.5, 0.5, 224)
    assert fine.tile_width_level0 * 0.25 == coarse.tile_width_level0 * 0.5 == 112.0


def test_box_fractions_are_exact_areas():
    mask = np.zeros((4, 4), bool)
    mask[1:3, 1:3] = True  # level-0 square (10, 20) to (30, 60) at 10 x 20 px a mask pixel
    coords = np.array([[0, 0], [10, 20], [5, 10], [30, 60], [35, 70]])
    got = box_fractions(mask, coords, 20.0, 40.0, (10.0, 20.0))
    assert got == pytest.approx([0.25, 1.0, 0.5625, 0.0, 0.0])


def test_box_smaller_than_a_mask_pixel():
    mask = np.array([[True, False]])
    got = box_fractions(mask, np.array([[6, 2], [8, 2], [10, 2]]), 4.0, 4.0, (10.0, 10.0))
    assert got == pytest.approx([1.0, 0.5, 0.0])


def test_footprint_beyond_the_mask_counts_as_not_covered():
    got = box_fractions(np.ones((2, 2), bool), np.array([[10, 0]]), 20.0, 20.0, (10.0, 10.0))
    assert got == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("mpp", "read_px", "field_um"),
    [
        (0.20, 640, 128.0),  # 256 * 0.5 / 0.20
        (0.25, 512, 128.0),
        (0.2999, 427, 128.0573),  # 426.81 rounded
        (0.31, 413, 128.03),  # 412.90 rounded; by magnification it would be 256 px, 79 um
        (0.499, 256, 127.744),  # within 2 %: the pixels as they are, and the effective spacing says so
    ],
)
def test_field_of_view_of_256_px_at_half_a_micron(mpp, read_px, field_um):
    plan = plan_tiles([(50000, 40000)], mpp, mpp, 0.5, 256)
    assert plan.level == 0 and (plan.read_width_px, plan.read_height_px) == (read_px, read_px)
    assert plan.tile_width_level0 * mpp == pytest.approx(field_um, abs=1e-9)
    assert plan.effective_spacing_x_um == pytest.approx(field_um / 256, rel=1e-12)
    assert abs(field_um - 128.0) <= mpp  # to the rounding of one pixel


def test_slide_of_0_59_um_is_not_blown_up_to_half_a_micron():
    with pytest.raises(SlideError) as caught:
        plan_tiles([(50000, 40000)], 0.59, 0.59, 0.5, 256)
    assert (caught.value.status, caught.value.reason) == ("too_coarse", "upsampling_refused")
    assert plan_tiles([(50000, 40000)], 0.59, 0.59, 1.0, 256).read_width_px == 434  # 433.9


@pytest.mark.parametrize(
    ("at_level0", "downsample", "position"),
    [
        (512, 2.0, 256.0),
        (513, 2.0, 256.5),  # between two pixels
        (513, 4.0, 128.25),
        (512, 10001 / 5001, 256.0),  # 511.95 is pixel 256, rounded
        (9599, 10001 / 5001, 4800.0),  # 4800 * 1.9998 = 9599.04
        (-512, 2.0, -256.0),
        (7, 1.0, 7.0),
        (16, 16.013, 1.0),
        (24, 16.013, 24 / 16.013),
    ],
)
def test_level_position_finds_the_pixel_of_a_rounded_coordinate(at_level0, downsample, position):
    assert level_position(at_level0, downsample) == position


@pytest.mark.parametrize("small", [5001, 5000, 2501, 2500, 3334, 7000])
def test_every_grid_start_finds_its_own_pixel_on_the_level(small):
    sizes = [(10001, 10001), (small, small)]
    plan = plan_tiles(sizes, 0.25, 0.25, 0.25 * 10001 / small, 37)
    assert plan.level == 1
    xs, _ = grid_axes(10001, 10001, plan)
    found = [level_position(int(x), plan.downsample_x) for x in xs]
    assert found[:-1] == [37.0 * index for index in range(len(xs) - 1)]
    # The last tile is kept inside the slide, so its start may be rounded down by up to one pixel.
    assert abs(found[-1] - 37 * (len(xs) - 1)) < 1 and found[-1] + 37 <= small + 1e-6


@pytest.mark.parametrize("tile", [1, 17, 112, 224, 256, 1000])
@pytest.mark.parametrize("mpp", [0.11, 0.2325, 0.25, 0.5031])
def test_tiles_of_any_size_stay_on_the_slide_and_on_the_level(tile, mpp):
    for width, height in ((1, 1), (997, 1201), (4096, 257), (10001, 129)):
        sizes = [(width, height)]
        while min(sizes[-1]) > 64:
            sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
        plan = plan_tiles(sizes, mpp, mpp, 1.0, tile)
        grid = tile_grid(width, height, plan)
        if len(grid) == 0:
            assert width < plan.tile_width_level0 or height < plan.tile_height_level0
            continue
        assert grid.min() == 0 and len(np.unique(grid, axis=0)) == len(grid)
        level_w, level_h = sizes[plan.level]
        right, bottom = grid.max(axis=0).tolist()
        assert right + plan.tile_width_level0 <= width + 1e-6
        assert bottom + plan.tile_height_level0 <= height + 1e-6
        assert level_position(right, plan.downsample_x) + plan.read_width_px <= level_w + 1e-6
        assert level_position(bottom, plan.downsample_y) + plan.read_height_px <= level_h + 1e-6


def test_number_of_tiles_follows_from_tiles_not_from_regions():
    """3319 px hold 414 tiles of 8 px; a region rounded first (3319 / 64 = 51.9, 52 * 8) would make it 416."""
    plan = plan_tiles([(3319, 3319)], 0.5, 0.5, 0.5, 8)
    xs, ys = grid_axes(3319, 3319, plan)
    assert (len(xs), len(ys)) == (414, 414) and xs[-1] == 413 * 8


def test_grid_fractions_are_box_fractions():
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask = rng.random((int(rng.integers(1, 60)), int(rng.integers(1, 60)))) < 0.5
        width, height = (int(n) for n in rng.integers(200, 3000, 2))
        scale = (width / mask.shape[1], height / mask.shape[0])
        plan = plan_tiles(
            [(width, height)], 0.25, 0.26, float(rng.uniform(0.27, 2.0)), int(rng.integers(8, 60))
        )
        footprint = plan.tile_width_level0, plan.tile_height_level0
        xs, ys = grid_axes(width, height, plan)
        got = grid_fractions(mask, xs, ys, *footprint, scale)
        assert got.shape == (len(ys), len(xs))
        expected = box_fractions(mask, tile_grid(width, height, plan), *footprint, scale)
        assert got.ravel() == pytest.approx(expected, abs=1e-9)


def test_tiles_without_tissue_have_none_at_all():
    """Sums over a whole mask leave traces of rounding that a count of tiles touching tissue would count."""
    mask = np.zeros((1250, 1563), bool)
    mask[:600, :700] = True
    xs = ys = np.arange(0, 80000, 256)
    fractions = grid_fractions(mask, xs, ys, 256.0, 256.0, (100000 / 1563, 80000 / 1250))
    touching = (xs < 700 * 100000 / 1563).sum() * (ys < 600 * 64).sum()
    assert (fractions > 0).sum() == touching


def test_grid_does_not_depend_on_the_mask():
    plan = plan_tiles([(1000, 800)], 0.5, 0.5, 0.5, 100)
    xs, ys = grid_axes(1000, 800, plan)
    left = np.zeros((80, 100), bool)
    left[10:40, 7:63] = True
    right = np.roll(left, (13, 31), (0, 1))
    for mask in (left, right):
        kept = np.argwhere(grid_fractions(mask, xs, ys, 100.0, 100.0, (10.0, 10.0)) >= 0.5)
        assert len(kept) and set(xs[kept[:, 1]] % 100) == {0} and set(ys[kept[:, 0]] % 100) == {0}

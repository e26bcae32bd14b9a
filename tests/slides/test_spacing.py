"""Which spacing is believed."""

import pytest

from acpbench.slides.spacing import plausible, resolve_spacing


def test_both_axes_of_the_file_are_kept():
    spacing = resolve_spacing(0.25, 0.2525, "openslide.mpp", None, 40)
    assert (spacing.mpp_x, spacing.mpp_y, spacing.source) == (0.25, 0.2525, "openslide.mpp")
    assert spacing.warnings == ()


@pytest.mark.parametrize("dpi", [352.9, 1000.0, 84.67, 0.0, -0.5, float("nan"), float("inf"), 0.01])
def test_print_resolutions_are_refused(dpi):
    spacing = resolve_spacing(dpi, dpi, "tiff.resolution", None, None)
    assert (spacing.mpp_x, spacing.mpp_y, spacing.problem) == (None, None, "mpp_implausible")


def test_bounds_are_inclusive():
    assert plausible(0.05) and plausible(20.0)
    assert not plausible(0.0499) and not plausible(20.01)


def test_missing_is_not_guessed_from_the_objective():
    spacing = resolve_spacing(None, None, None, None, 20)
    assert (spacing.mpp_x, spacing.problem, spacing.source) == (None, "mpp_missing", None)


def test_declared_wins_and_the_contradiction_names_both_numbers():
    spacing = resolve_spacing(0.499, 0.499, "openslide.mpp", 0.25, None)
    assert (spacing.mpp_x, spacing.mpp_y, spacing.source) == (0.25, 0.25, "declared")
    assert len(spacing.warnings) == 1
    assert "0.25" in spacing.warnings[0] and "0.499" in spacing.warnings[0]


def test_declared_that_agrees_is_silent():
    assert resolve_spacing(0.499, 0.499, "openslide.mpp", 0.5, 20).warnings == ()


def test_declared_replaces_an_implausible_one_and_says_so():
    spacing = resolve_spacing(352.9, 352.9, "tiff.resolution", 0.5, None)
    assert spacing.mpp_x == 0.5
    assert "352.9" in spacing.warnings[0] and "0.5" in spacing.warnings[0]


def test_implausible_declaration_is_refused():
    spacing = resolve_spacing(0.5, 0.5, "openslide.mpp", 1000.0, None)
    assert (spacing.mpp_x, spacing.problem) == (None, "mpp_implausible")


@pytest.mark.parametrize(
    ("mpp", "power", "warned"), [(0.5, 20, False), (0.46, 20, False), (0.25, 20, True), (0.5, 40, True)]
)
def test_objective_power_only_warns(mpp, power, warned):
    spacing = resolve_spacing(mpp, mpp, "openslide.mpp", None, power)
    assert spacing.mpp_x == mpp
    assert bool(spacing.warnings) is warned


def test_pixels_far_from_square_are_reported():
    assert "not square" in resolve_spacing(0.25, 0.5, "openslide.mpp", None, None).warnings[0]


@pytest.mark.parametrize(
    ("mpp", "power", "conflict"),
    [
        (0.59, 20, False),  # 18 % above the usual 0.5
        (0.61, 20, True),  # 22 %
        (0.41, 20, False),
        (0.39, 20, True),
        (0.2, 20, True),  # fields of a scanner that contradict each other: 0.2 um/px and 20x
    ],
)
def test_conflict_with_the_objective_power_starts_at_a_fifth(mpp, power, conflict):
    spacing = resolve_spacing(mpp, mpp, "openslide.mpp", None, power)
    assert bool(spacing.warnings) is conflict
    if conflict:
        assert f"{mpp:g}" in spacing.warnings[0] and f"{power:g}" in spacing.warnings[0]


def test_contradiction_on_one_axis_is_one():
    warned = resolve_spacing(0.5, 0.55, "openslide.mpp", 0.5, None).warnings
    assert len(warned) == 1 and "0.55" in warned[0]


def test_half_a_spacing_is_none():
    assert resolve_spacing(0.5, None, "x", None, None).problem == "mpp_missing"


def test_one_implausible_axis_is_enough_to_refuse():
    spacing = resolve_spacing(0.5, 352.9, "tiff.resolution", None, None)
    assert (spacing.mpp_x, spacing.problem) == (None, "mpp_implausible") and "352.9" in spacing.detail


def test_refusal_says_what_to_do():
    for given in ((None, None), (1000.0, 1000.0)):
        assert "declare the slide's mpp" in resolve_spacing(*given, "tiff.resolution", None, None).detail

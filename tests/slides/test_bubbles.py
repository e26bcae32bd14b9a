"""Air bubbles: drawn ones are found, what only looks like one is not, real slides without any have none."""

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from acpbench.core.files import read_csv
from acpbench.slides.bubbles import bubble_mask, fit_circle
from acpbench.slides.inspect import inspect_slide
from acpbench.slides.quality import screen_slide
from acpbench.slides.reader import open_slide
from acpbench.slides.tissue import TissueSettings
from tests.slides.pictures import PINK, tissue_picture, write_pyramid

SPACING_UM = 8.0


def draw_bubble(picture, x, y, radius, rim=3.0, depth=0.45, gap=0.0):
    """Darken a soft grey ring; ``gap`` is the share of it that is left out."""
    grid_y, grid_x = np.mgrid[: picture.shape[0], : picture.shape[1]]
    distance = np.hypot(grid_x - x, grid_y - y)
    angle = (np.arctan2(grid_y - y, grid_x - x) + np.pi) / (2 * np.pi)
    shade = depth * np.exp(-(((distance - radius) / (rim / 2)) ** 2)) * (angle >= gap)
    grey = picture.mean(axis=-1, keepdims=True)
    # Refraction takes light away whatever its colour: the rim goes grey as it goes dark.
    mixed = picture * (1 - shade[..., None]) + (grey - picture) * shade[..., None] * 0.8
    picture[:] = np.clip(mixed, 0, 255).astype(np.uint8)
    return distance <= radius


def overlap(found, truth):
    return (found & truth).sum() / (found | truth).sum()


@pytest.mark.parametrize("radius", [12, 40, 90])
@pytest.mark.parametrize("tissue", [False, True])
def test_a_drawn_bubble_is_found(radius, tissue):
    picture = tissue_picture(300, 260, [(150, 0, 150, 260)] if tissue else [])
    truth = draw_bubble(picture, 150, 130, radius, depth=0.6)
    assert overlap(bubble_mask(picture, SPACING_UM), truth) > 0.85


def test_a_bubble_with_a_short_gap_is_found_and_an_arc_is_not():
    closed = tissue_picture(260, 260, [])
    draw_bubble(closed, 130, 130, 60, gap=0.15)
    assert bubble_mask(closed, SPACING_UM).any()
    arc = tissue_picture(260, 260, [])
    draw_bubble(arc, 130, 130, 60, gap=0.5)
    assert not bubble_mask(arc, SPACING_UM).any()


def test_two_bubbles_are_two():
    from skimage.measure import label

    picture = tissue_picture(400, 200, [])
    for x in (90, 300):
        draw_bubble(picture, x, 100, 50)
    assert label(bubble_mask(picture, SPACING_UM)).max() == 2


def _disc(colour):
    picture = tissue_picture(260, 260, [])
    grid_y, grid_x = np.mgrid[:260, :260]
    picture[np.hypot(grid_x - 130, grid_y - 130) < 60] = colour
    return picture


def _hair():
    picture = tissue_picture(260, 260, [])
    for step in range(220):
        y = 130 + int(30 * np.sin(step / 30))
        picture[y - 1 : y + 2, 20 + step] = 90
    return picture


def _gland():
    """A ring of stained nuclei around a pale lumen."""
    picture = tissue_picture(260, 260, [(0, 0, 260, 260)])
    grid_y, grid_x = np.mgrid[:260, :260]
    distance = np.hypot(grid_x - 130, grid_y - 130)
    picture[distance < 50] = 245
    picture[(distance >= 50) & (distance < 54)] = (90, 60, 140)
    return picture


def _dust():
    rng = np.random.default_rng(3)
    picture = tissue_picture(260, 260, [])
    for x, y in rng.integers(10, 250, (60, 2)):
        picture[y : y + 3, x : x + 3] = 80
    return picture


@pytest.mark.parametrize(
    "picture",
    [_disc(PINK), _disc((120, 120, 122)), _hair(), _gland(), _dust(),
     tissue_picture(260, 260, [(60, 60, 140, 140)])],
    ids=["tissue core", "grey disc", "hair", "gland", "dust", "square section"],
)  # fmt: skip
def test_what_is_no_bubble_is_not_found(picture):
    blurred = gaussian_filter(picture.astype(float), (1, 1, 0)).astype(np.uint8)
    for shown in (picture, blurred):
        assert not bubble_mask(shown, SPACING_UM).any()


def test_ink_is_ink_and_not_the_rim_of_a_bubble(tmp_path):
    picture = tissue_picture(1200, 1200, [(500, 500, 200, 200)])
    grid_y, grid_x = np.mgrid[:1200, :1200]
    picture[np.abs(np.hypot(grid_x - 600, grid_y - 600) - 400) < 20] = (25, 25, 28)
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(2.0, 2.0))
    with open_slide(path) as reader:
        screen = screen_slide(reader)
    assert screen.pens["black"].any() and not screen.bubbles.any()


def test_circle_through_four_points():
    # (3, 4) with radius 5 passes through these exactly.
    assert fit_circle(np.array([8.0, -2.0, 3.0, 0.0]), np.array([4.0, 4.0, 9.0, 0.0])) == pytest.approx(
        (3, 4, 5)
    )
    assert fit_circle(np.arange(5.0), np.arange(5.0)) is None


def test_a_bubble_is_reported_and_taken_out_only_when_asked(tmp_path):
    picture = tissue_picture(1600, 1200, [(200, 200, 1200, 800)])
    draw_bubble(picture, 800, 600, 200, rim=24, depth=0.7)
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(1.0, 1.0))
    kept = inspect_slide(path, slide_id="a")
    assert kept.quality["counts"]["n_bubble_regions"] == 1
    share = np.pi * 200**2 / (1600 * 1200)
    assert kept.quality["classes"]["bubble"]["fraction"] == pytest.approx(share, rel=0.1)
    assert [f["properties"]["classification"]["name"] for f in kept.geojson["features"]].count(
        "Air bubble"
    ) == 1
    removed = inspect_slide(path, slide_id="a", settings=TissueSettings(remove=("pen", "bubble")))
    lost = kept.quality["tissue_area_mm2"] - removed.quality["tissue_area_mm2"]
    assert lost == pytest.approx(np.pi * 0.2**2, rel=0.12)


def test_real_slides_without_bubbles_have_none(shared_data):
    """72 lung slides, an H&E section and a frozen section: none has a bubble a person can see."""
    slides = [(shared_data / "slides" / "CMU-1-Small-Region.svs", None)]
    slides.append((shared_data / "slides" / "TCGA-CR-7395-01A-01-TS1.svs", 0.5))
    folder = shared_data / "cohorts" / "lung_composite"
    if folder.is_dir():
        slides += [(folder / row["path"], None) for row in read_csv(folder / "slides.csv")[::12]]
    found = {}
    for path, mpp in slides:
        if path.is_file():
            with open_slide(path, mpp) as reader:
                share = float(screen_slide(reader).bubbles.mean())
            if share:
                found[path.name] = share
    assert found == {}


def test_a_demo_slide_has_no_bubble(tmp_path, repository):
    from acpbench.slides.synthetic import draw_slide

    row = read_csv(repository / "tasks" / "demo" / "cohort.csv")[0]
    draw_slide(row, tmp_path / "a.svs")
    with open_slide(tmp_path / "a.svs") as reader:
        screen = screen_slide(reader)
    assert not screen.bubbles.any()
    assert Image.fromarray(screen.overview.rgb).size[0] > 100

"""The generated slides: reproducible bytes, OpenSlide's view of them, classes no mean colour tells."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.slides.synthetic import draw_slide, render_slide_rgb, slide_colour
from acpbench.slides.synthetic_architecture import build_architecture, place_nuclei
from acpbench.slides.synthetic_cohort import COLUMNS, build_cohort
from acpbench.slides.synthetic_fields import FAR_PX, FIELD_PX, tissue_distance

ROW = {"slide_id": "S-1", "seed": "11", "pleomorphism": "high", "gland_grade": "moderate", "defect": "none"}


@pytest.fixture(scope="module")
def rows(repository):
    with open(repository / "tasks" / "demo" / "cohort.csv", encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    path = tmp_path_factory.mktemp("slides") / "S-1.svs"
    draw_slide(ROW, path)
    return path


def usable(rows):
    return [row for row in rows if row["defect"] not in ("broken", "empty")]


def tissue_statistics(rgb):
    """Mean colour of everything clearly darker than glass, at a quarter of the resolution."""
    small = np.asarray(Image.fromarray(rgb).reduce(4)).astype(float)
    tissue = np.abs(small - small[:8, :8].mean((0, 1))).max(-1) > 20
    return small[tissue].mean(0)


def leave_one_patient_out_auroc(features, rows, column, positive):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = np.array([row[column] == positive for row in rows])
    scores = cross_val_predict(
        make_pipeline(StandardScaler(), LogisticRegression()),
        np.asarray(features),
        labels,
        groups=[row["patient_id"] for row in rows],
        cv=LeaveOneGroupOut(),
        method="predict_proba",
    )
    return roc_auc_score(labels, scores[:, 1])


# ----------------------------------------------------------------------------------------------- the manifest


def test_the_shipped_manifest_is_what_the_generator_makes(rows):
    assert rows == build_cohort()
    assert tuple(rows[0]) == COLUMNS
    assert build_cohort(1) != rows


def test_labels_are_balanced_crossed_and_one_per_patient(rows):
    assert len(rows) == len({row["slide_id"] for row in rows}) == 38
    patients = {}
    for row in rows:
        labels = (row["pleomorphism"], row["gland_grade"], row["time_months"], row["event"])
        assert patients.setdefault(row["patient_id"], labels) == labels
    kept = {row["patient_id"]: row for row in usable(rows)}
    assert (len(patients), len(kept), len(usable(rows))) == (31, 30, 36)
    cells = Counter((row["pleomorphism"], row["gland_grade"]) for row in kept.values())
    assert len(cells) == 6 and set(cells.values()) == {5}
    assert Counter(row["defect"] for row in rows) == {
        "none": 28,
        "pen": 4,
        "fold": 4,
        "broken": 1,
        "empty": 1,
    }
    broken = next(row for row in rows if row["defect"] == "broken")
    empty = next(row for row in rows if row["defect"] == "empty")
    assert broken["patient_id"] in kept and empty["patient_id"] not in kept
    assert all(row["path"] == f"slides/{row['slide_id']}.svs" for row in rows)


def test_survival_follows_the_labels(rows):
    patients = list({row["patient_id"]: row for row in usable(rows)}.values())
    events = np.mean([row["event"] == "1" for row in patients])
    assert 0.5 <= events <= 0.7
    risk = [(row["pleomorphism"] == "high") + (row["gland_grade"] == "poor") for row in patients]
    good = total = 0.0
    for i, one in enumerate(patients):  # Harrell's comparable pairs
        for j, other in enumerate(patients):
            if one["event"] == "1" and float(one["time_months"]) < float(other["time_months"]):
                total += 1
                good += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    assert good / total > 0.6


# ------------------------------------------------------------------------------------------------- the file


def test_same_row_same_bytes_other_seed_other_bytes(slide, tmp_path):
    draw_slide(ROW, tmp_path / "again.svs")
    assert (tmp_path / "again.svs").read_bytes() == slide.read_bytes()
    draw_slide({**ROW, "seed": "12"}, tmp_path / "other.svs")
    assert (tmp_path / "other.svs").read_bytes() != slide.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svs", "other.svs"]


def test_openslide_sees_an_aperio_pyramid(slide):
    import openslide

    with openslide.OpenSlide(slide) as opened:
        assert opened.properties["openslide.vendor"] == "aperio"
        assert opened.properties["openslide.mpp-x"] == opened.properties["openslide.mpp-y"] == "0.5"
        assert opened.properties["openslide.objective-power"] == "20"
        assert opened.level_dimensions == ((2048, 2048), (1024, 1024), (512, 512))
        assert opened.level_downsamples == (1.0, 2.0, 4.0)
        assert opened.properties["openslide.level[0].tile-width"] == "256"
        sizes = {name: image.size for name, image in opened.associated_images.items()}
        assert sizes == {"thumbnail": (512, 512), "label": (300, 300), "macro": (1000, 400)}


def test_pixels_survive_jpeg_with_their_colours(slide):
    import openslide

    painted = render_slide_rgb(ROW)
    with openslide.OpenSlide(slide) as opened:
        for level, factor in enumerate((1, 2, 4)):
            size = opened.level_dimensions[level]
            read = np.asarray(opened.read_region((0, 0), level, size).convert("RGB")).astype(float)
            wanted = np.asarray(Image.fromarray(painted).reduce(factor) if factor > 1 else painted)
            assert np.abs(read - wanted).mean() < 4  # swapped or doubly converted colours are off by tens
        thumbnail = np.asarray(opened.associated_images["thumbnail"].convert("RGB")).astype(float)
        assert np.abs(thumbnail - wanted).mean() < 4


def test_the_picture_does_not_depend_on_the_name(slide):
    assert np.array_equal(
        render_slide_rgb({**ROW, "slide_id": "other"}), render_slide_rgb({**ROW, "seed": 11})
    )


def test_broken_slide_does_not_open(tmp_path):
    import openslide

    draw_slide({**ROW, "defect": "broken"}, tmp_path / "broken.svs")
    assert (tmp_path / "broken.svs").stat().st_size > 10_000
    with pytest.raises(openslide.OpenSlideError):
        openslide.OpenSlide(tmp_path / "broken.svs")
    with pytest.raises(InputError, match="broken"):
        render_slide_rgb({**ROW, "defect": "broken"})


def test_empty_slide_is_white_glass():
    rgb = render_slide_rgb({**ROW, "defect": "empty"})
    assert rgb.shape == (2048, 2048, 3) and rgb.dtype == np.uint8
    assert rgb.min() > 230 and rgb.std(axis=(0, 1)).max() < 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"pleomorphism": "mid"}, "pleomorphism"),
        ({"gland_grade": None}, "gland_grade"),
        ({"defect": "torn"}, "defect"),
        ({"slide_id": "../up"}, "slide_id"),
    ],
)
def test_bad_rows_are_refused_and_write_nothing(change, field, tmp_path):
    with pytest.raises(InputError) as caught:
        draw_slide({**ROW, **change}, tmp_path / "slide.svs")
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------- defects and classes


def test_defects_change_only_where_they_lie():
    clean = render_slide_rgb(ROW).astype(int)
    pen = render_slide_rgb({**ROW, "defect": "pen"}).astype(int)
    fold = render_slide_rgb({**ROW, "defect": "fold"}).astype(int)
    changed_by_pen = np.abs(pen - clean).max(-1) > 12
    changed_by_fold = np.abs(fold - clean).max(-1) > 12
    assert 0.002 < changed_by_pen.mean() < 0.05
    assert 0.005 < changed_by_fold.mean() < 0.08
    assert fold[changed_by_fold].mean() < clean[changed_by_fold].mean() - 20  # two layers are darker


def test_gland_grade_is_a_matter_of_glands_and_lumens():
    outline = tissue_distance(np.random.default_rng(3))
    made = {g: build_architecture(np.random.default_rng(4), g, outline) for g in ("well", "moderate", "poor")}
    lumen = {g: float((a.lumen_px < 0).mean()) for g, a in made.items()}
    solid = {g: float((a.solid_px < 0).mean()) for g, a in made.items()}
    assert lumen["well"] > 1.5 * lumen["moderate"] > 3 * lumen["poor"]
    assert solid["well"] == 0 and solid["poor"] > 0.1
    assert len(made["well"].round_glands) > 20 and not made["poor"].round_glands


def test_pleomorphism_is_size_and_spread_of_tumour_nuclei():
    outline = tissue_distance(np.random.default_rng(3))
    tumour = build_architecture(np.random.default_rng(4), "well", outline)
    nothing = np.full((FIELD_PX, FIELD_PX), FAR_PX, np.float32)
    radius = {}
    for label in ("low", "high"):
        nuclei = place_nuclei(np.random.default_rng(5), label, tumour, outline, nothing, nothing * 0)
        epithelial = nuclei.keep(nuclei.minor_px / nuclei.major_px > 0.5)
        radius[label] = np.sqrt(epithelial.minor_px * epithelial.major_px)
    assert radius["high"].mean() > 1.08 * radius["low"].mean()
    assert radius["high"].std() / radius["high"].mean() > 1.3 * radius["low"].std() / radius["low"].mean()


@pytest.mark.parametrize(("pleomorphism", "grade"), [("low", "poor"), ("high", "well")])
def test_tissue_is_matched_to_a_colour_that_only_the_seed_sets(pleomorphism, grade):
    target = slide_colour(77)["mean_rgb"]
    rgb = render_slide_rgb({"seed": 77, "pleomorphism": pleomorphism, "gland_grade": grade, "defect": "none"})
    outline = tissue_distance(np.random.default_rng([77, 3]))
    half = np.asarray(Image.fromarray(rgb).reduce(2)).astype(float)
    assert np.abs(half[outline < 0].mean(0) - target).max() < 1.5


def test_the_colours_set_for_the_cohort_do_not_tell_the_classes(rows):
    colours = [slide_colour(int(row["seed"]))["mean_rgb"] for row in usable(rows)]
    assert np.std(colours, axis=0).min() > 2  # there is jitter to be fooled by
    for column, positive in (("pleomorphism", "high"), ("gland_grade", "poor")):
        assert 0.35 <= leave_one_patient_out_auroc(colours, usable(rows), column, positive) <= 0.65


@pytest.mark.slow
def test_mean_tissue_colour_of_the_drawn_cohort_does_not_tell_the_classes(rows):
    colours = [tissue_statistics(render_slide_rgb(row)) for row in usable(rows)]
    for column, positive in (("pleomorphism", "high"), ("gland_grade", "poor")):
        assert 0.35 <= leave_one_patient_out_auroc(colours, usable(rows), column, positive) <= 0.65

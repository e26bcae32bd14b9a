"""Cohorts as people bring them, through the workflow: odd tables, masks, a cache, nothing that matches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import yaml
from PIL import Image

from acpbench.core.files import read_csv
from acpbench.slides.coords import read_coords
from tests.slides.pictures import tissue_picture, write_pyramid
from tests.workflow.study import REPOSITORY, plan, snakemake

COHORT = "results/cohorts/crc/slides.csv"


def write_cohort(folder: Path, **cohort: Any) -> Path:
    """Slides in a folder of their own, a table without endings, a clinical workbook; a study of them."""
    slides = folder / "archive"
    slides.mkdir(parents=True)
    for seed, name in enumerate(("AAA.BBB.1", "AAA.BBB.2", "C-1")):
        picture = tissue_picture(512, 384, [(0, 0, 512, 384)], seed)
        write_pyramid(slides / f"{name}.tif", picture)
    write_pyramid(slides / "nospacing.tif", tissue_picture(512, 384, [(0, 0, 512, 384)]), mpp=None)
    (slides / "broken.tif").write_bytes(b"II*\0rubbish")
    lines = [
        "FILENAME\tPATIENT\tum\ttissue",
        "AAA.BBB.1\tP1\t\t",
        "AAA.BBB.2\tP1\t\tmask.png",
        "C-1\tP2\t\t",
        "nospacing\tP3\t0.5\t",
        "broken\tP3\t\t",
        "gone\tP4\t\t",
        "odd\tP5\twide\t",
    ]
    (folder / "slides.tsv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    mask = Image.new("L", (64, 48))
    mask.paste(255, (0, 0, 32, 48))
    mask.save(folder / "mask.png")
    book = openpyxl.Workbook()
    for row in (["CASE", "MSI"], ["P1", "high"], ["P3", "low"], ["P9", "low"]):
        book.active.append(row)
    book.save(folder / "clinical.xlsx")
    config = {
        "study": "crc",
        "cohorts": {
            "crc": {
                "manifest": str(folder / "slides.tsv"),
                "slide_dir": str(slides),
                "suffix": ".tif",
                "clinical": str(folder / "clinical.xlsx"),
                "columns": {
                    "slide_id": "FILENAME",
                    "patient_id": "PATIENT",
                    "path": "FILENAME",
                    "mpp": "um",
                    "mask": "tissue",
                    "clinical_patient_id": "CASE",
                },
                "cache_dir": str(folder / "fast"),
            }
            | cohort
        },
        "tasks": {"msi": {"cohort": "crc", "label_column": "MSI", "classes": ["low", "high"]}},
        "tiling": {"spacing_um": 1.0, "tile_size_px": 64},
        "encoders": ["color_stats"],
        "folds": 3,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cohort(tmp_path_factory.mktemp("cohort") / "study")
    done = snakemake(REPOSITORY, folder, COHORT)
    assert done.returncode == 0, done.stdout[-3000:]
    return folder


def test_tables_join_and_every_row_is_accounted_for(cohort: Path) -> None:
    rows = read_csv(cohort / COHORT)
    assert [(row["slide_id"], row["patient_id"], row["MSI"], row["mpp"]) for row in rows] == [
        ("AAA.BBB.1", "P1", "high", rows[0]["mpp"]),
        ("AAA.BBB.2", "P1", "high", rows[1]["mpp"]),
        ("nospacing", "P3", "low", "0.5"),
    ]
    assert [row["path"] for row in rows] == [
        f"archive/{row['slide_id']}.tif" for row in rows
    ]  # relative to the manifest
    assert all(len(row["sha256"]) == 64 and int(row["size_bytes"]) > 1000 for row in rows)
    dropped = read_csv(cohort / "results/cohorts/crc/exclusions.csv")
    assert {row["slide_id"]: (row["stage"], row["reason"]) for row in dropped} == {
        "odd": ("manifest", "bad_mpp"),
        "gone": ("manifest", "missing_file"),
        "broken": ("inspect", "unreadable"),
        "C-1": ("clinical", "no_clinical_row"),
    }


def test_the_flow_counts_slides_and_patients(cohort: Path) -> None:
    flow = json.loads((cohort / "results/cohorts/crc/consort.json").read_text())
    assert (flow["cohort"], flow["n_rows"], flow["n_patients"]) == ("crc", 7, 5)
    assert [(s["step"], s["n_slides_out"], s["n_patients_out"]) for s in flow["steps"]] == [
        ("valid_row", 6, 4),
        ("unique", 6, 4),
        ("file_present", 5, 3),
        ("readable", 4, 3),
        ("spacing", 4, 3),
        ("tissue", 4, 3),
        ("enough_tiles", 4, 3),
        ("clinical", 3, 2),
    ]
    assert flow["labels"]["MSI"]["n_patients"] == 2
    assert (
        "| File present | 5 | 3 | 1 | 1 | 1 missing_file |"
        in (cohort / "results/cohorts/crc/consort.md").read_text()
    )


def test_one_bad_cell_stops_no_other_slide(cohort: Path) -> None:
    """The row with a spacing of ``wide`` never becomes a job; the broken slide has its files all the same."""
    assert not (cohort / "results/slides/crc/odd").exists()
    quality = json.loads((cohort / "results/slides/crc/broken/quality.json").read_text())
    assert quality["status"] == "unreadable"


def test_names_with_dots_stay_whole(cohort: Path) -> None:
    folders = {path.name for path in (cohort / "results/slides/crc").iterdir()}
    assert folders == {"AAA.BBB.1", "AAA.BBB.2", "C-1", "nospacing", "broken", "gone"}


def test_a_mask_of_the_manifest_decides_the_tiles(cohort: Path) -> None:
    whole = read_coords(cohort / "results/slides/crc/AAA.BBB.1/coords.h5").coords
    masked = read_coords(cohort / "results/slides/crc/AAA.BBB.2/coords.h5").coords
    assert set(whole[:, 0].tolist()) == {0, 128, 256, 384}
    assert set(masked[:, 0].tolist()) == {0, 128}


def test_slides_are_read_from_their_copies_and_results_do_not_say_so(cohort: Path) -> None:
    copies = sorted(path.name for path in (cohort / "fast").rglob("*.tif"))
    assert copies == ["AAA.BBB.1.tif", "AAA.BBB.2.tif", "C-1.tif", "broken.tif", "nospacing.tif"]
    for path in (cohort / "results/slides").rglob("*.json"):
        assert str(cohort / "fast") not in path.read_text()


def test_another_cache_makes_nothing_anew_and_another_mask_one_slide(cohort: Path) -> None:
    config = yaml.safe_load((cohort / "study.yaml").read_text())
    config["cohorts"]["crc"]["cache_dir"] = None
    (cohort / "other.yaml").write_text(yaml.safe_dump(config))
    assert plan(REPOSITORY, cohort, COHORT, config="other.yaml") == {}
    config["cohorts"]["crc"]["min_tissue_um2"] = 5000
    (cohort / "other.yaml").write_text(yaml.safe_dump(config))
    assert plan(REPOSITORY, cohort, COHORT, config="other.yaml")["inspect_slide"] == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slide_dir": "elsewhere", "clinical": None},
         ["crc: none of 7 rows is usable", "6 missing_file", "1 bad_mpp"]),
        ({"columns": {"slide_id": "FILENAME", "patient_id": "FILENAME", "path": "FILENAME", "mpp": "um",
                      "clinical_patient_id": "CASE"}},
         ["no patient id is in both tables", "'AAA.BBB.1'", "'P1'"]),
    ],
)  # fmt: skip
def test_a_cohort_of_which_nothing_matches_fails_with_the_reason(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    folder = write_cohort(tmp_path / "study", **change)
    done = snakemake(REPOSITORY, folder, COHORT)
    assert done.returncode == 1
    log = " ".join(done.stdout.split())
    assert [word for word in words if word not in log] == []
    assert not (folder / COHORT).exists()
    if "slide_dir" in change:
        # Said before the first job as well.
        warned = done.stdout.index("none of its 6 slide files is there")
        assert warned < re.search(r"^(?:local)?rule inspect_slide:", done.stdout, re.MULTILINE).start()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": {"slide_id": "NAME"}}, "has no column 'NAME' for slide_id"),
        ({"manifest": "none.xlsx"}, "none.xlsx"),
        ({"artefacts_removed": ["blur"]}, "artefacts_removed"),
    ],
)
def test_a_wrong_cohort_is_one_line_before_any_job(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = write_cohort(tmp_path / "study", **change)
    done = snakemake(REPOSITORY, folder, "--dry-run", COHORT)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert sum(words in line for line in done.stdout.splitlines()) == 1, done.stdout

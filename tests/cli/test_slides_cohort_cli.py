"""``acp-bench slides manifest``, and masks on the command line."""

import json
import sys

import h5py
import pytest
from PIL import Image

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
def table(tmp_path):
    (tmp_path / "slides").mkdir()
    for name in ("a", "b"):
        (tmp_path / "slides" / f"{name}.svs").touch()
    (tmp_path / "t.csv").write_text("FILE;CASE\na;P1\nb;P2\nb;P2\nc;P3\n")
    (tmp_path / "clinical.csv").write_text("CASE,y\nP1,1\nP3,0\nP9,1\n")
    return tmp_path / "t.csv"


COLUMNS = (
    "--column",
    "slide_id=FILE",
    "--column",
    "patient_id=CASE",
    "--column",
    "path=FILE",
    "--suffix",
    ".svs",
)


def test_a_manifest_is_checked_before_any_work(call, table, tmp_path):
    code, out, err = call("slides", "manifest", table, *COLUMNS, "--slide-dir", tmp_path / "slides")
    assert (code, err) == (0, "")
    lines = {line[:20].strip(): line[20:].strip() for line in out.splitlines()}
    assert lines["rows"] == "4 of 3 patients"
    assert lines["duplicate_slide_id"].startswith("1 (row 4")
    assert lines["missing_file"].startswith("1 (row 5: no slide file at") and "c.svs" in lines["missing_file"]
    assert lines["usable"] == "2 slides of 2 patients"


def test_the_clinical_table_is_joined_as_the_workflow_does(call, table, tmp_path):
    code, out, _ = call(
        "slides", "manifest", table, *COLUMNS, "--slide-dir", tmp_path / "slides",
        "--clinical", tmp_path / "clinical.csv",
    )  # fmt: skip
    assert code == 0
    assert "3 rows of 3 patients, 2 of them in the manifest" in out
    assert "1 patients (the first: P2)" in out and "1 slides of 1 patients" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--column", "slide_id"], "is not FIELD=COLUMN"),
        (["--column", "slide=FILE"], "unknown field 'slide'"),
        (["--column", "slide_id=NAME"], "no column 'NAME'"),
        ([*COLUMNS], "none of 4 rows is usable"),  # the slides lie elsewhere
    ],
)
def test_what_cannot_be_used_exits_with_2_and_one_line(call, table, options, words):
    code, _, err = call("slides", "manifest", table, *options)
    assert code == 2 and words in err and err.count("\n") == 1


def test_a_mask_of_ones_own(call, tmp_path):
    slide = write_pyramid(tmp_path / "s.tif", tissue_picture(1024, 768, [(0, 0, 1024, 768)]))
    picture = Image.new("L", (64, 48))
    picture.paste(1, (0, 0, 32, 24))
    picture.save(tmp_path / "m.png")
    code, out, _ = call("slides", "inspect", slide, "--mask", tmp_path / "m.png", "--format", "json")
    assert code == 0 and json.loads(out)["tissue_fraction"] == pytest.approx(0.25, abs=0.01)
    output = tmp_path / "c.h5"
    code, _, _ = call(
        "slides", "tile", slide, "--spacing-um", 1, "--tile-size-px", 64, "--tissue", tmp_path / "m.png",
        "--output", output,
    )  # fmt: skip
    assert code == 0
    with h5py.File(output) as handle:
        assert handle["coords"].shape == (12, 2) and handle["coords"][()].max() == 384
    code, _, err = call("slides", "inspect", slide, "--mask", tmp_path / "none.png")
    assert code == 2 and "none.png" in err and err.count("\n") == 1

"""Manifests and clinical tables."""

import os

import pytest
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.slides.manifest import is_blank, read_clinical, read_manifest


def _manifest(tmp_path, text, slides=("a", "b", "c", "d"), **options):
    for name in slides:
        (tmp_path / f"{name}.svs").write_bytes(name.encode())
    (tmp_path / "manifest.csv").write_text(text, encoding="utf-8")
    return read_manifest(tmp_path / "manifest.csv", **options)


def test_rows_labels_and_paths(tmp_path):
    manifest = _manifest(
        tmp_path, "slide_id,patient_id,path,mpp,label,site\na,P1,a.svs,0.25,high,X\nb,P1,b.svs,,low,\n"
    )
    first, second = manifest.rows
    assert (first.slide_id, first.patient_id, first.path, first.mpp) == ("a", "P1", "a.svs", 0.25)
    assert first.resolved == tmp_path / "a.svs" and first.labels == {"label": "high", "site": "X"}
    assert second.mpp is None and second.labels == {"label": "low", "site": ""}
    assert manifest.label_columns == ["label", "site"] and manifest.exclusions == [] and manifest.n_rows == 2
    assert manifest.patients == {"P1"} and first.record["mpp"] == "0.25"


def test_tsv_with_bom_and_mapped_columns(tmp_path):
    text = "\ufeffFILENAME\tPATIENT\tID\tum\ty\na.svs\tP1\ta\t0.5\t1\n"
    columns = {"slide_id": "ID", "patient_id": "PATIENT", "path": "FILENAME", "mpp": "um"}
    (row,) = _manifest(tmp_path, text, columns=columns).rows
    assert (row.slide_id, row.patient_id, row.mpp, row.labels) == ("a", "P1", 0.5, {"y": "1"})


def test_one_column_may_serve_as_id_and_path_and_lack_the_ending(tmp_path):
    text = "FILENAME,PATIENT\nAAA.BBB,P1\nc,P2\n"
    columns = {"slide_id": "FILENAME", "patient_id": "PATIENT", "path": "FILENAME"}
    manifest = _manifest(tmp_path, text, slides=("AAA.BBB", "AAA"), columns=columns, suffix=".svs")
    (row,) = manifest.rows
    # The id comes from the sheet: a name with dots is not cut at the first.
    assert (row.slide_id, row.path, row.resolved.name) == ("AAA.BBB", "AAA.BBB.svs", "AAA.BBB.svs")
    assert [out["reason"] for out in manifest.exclusions] == ["missing_file"]


def test_slides_may_lie_in_a_folder_of_their_own(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "x.svs").touch()
    manifest = _manifest(
        tmp_path, "slide_id,patient_id,path\nx,P1,x.svs\n", slides=(), slide_dir=tmp_path / "store"
    )
    (row,) = manifest.rows
    assert row.resolved == tmp_path / "store" / "x.svs"
    assert row.path == os.path.join("store", "x.svs")  # relative to the manifest, as every path of slides.csv


def test_several_slides_of_a_patient_are_rows_of_their_own(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,P1,a.svs\nb,P1,b.svs\nc,P2,c.svs\n")
    assert [(row.slide_id, row.patient_id) for row in manifest.rows] == [
        ("a", "P1"),
        ("b", "P1"),
        ("c", "P2"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("../a,P1,a.svs,", "bad_id"),
        (",P1,a.svs,", "bad_id"),
        ("a,,a.svs,", "bad_id"),
        ("a,P1,,", "missing_path"),
        ("a,P1,nope.svs,", "missing_file"),
        ("a,P1,a.svs,half", "bad_mpp"),
        ("a,P1,a.svs,1000", "bad_mpp"),
        ("a,P1,a.svs,inf", "bad_mpp"),
        ("a,NA,a.svs,", "bad_id"),
        ("nan,P1,a.svs,", "bad_id"),
        ("a,P1,n/a,", "missing_path"),
    ],
)
def test_bad_rows_are_excluded_with_their_row_number(tmp_path, line, reason):
    manifest = _manifest(tmp_path, f"slide_id,patient_id,path,mpp\n{line}\nb,P2,b.svs,\n")
    assert [row.slide_id for row in manifest.rows] == ["b"]
    (out,) = manifest.exclusions
    assert (out["stage"], out["reason"]) == ("manifest", reason)
    assert out["detail"].startswith("row 2:")


def test_cells_that_stand_for_no_value_declare_nothing(tmp_path):
    text = "slide_id,patient_id,path,mpp,mask\na,P1,a.svs,NA,none\nb,P2,b.svs,nan,\nb ,P2,b.svs, nan,\n"
    manifest = _manifest(tmp_path, text)
    assert [(row.slide_id, row.mpp, row.mask) for row in manifest.rows] == [
        ("a", None, None),
        ("b", None, None),
    ]
    assert [row["reason"] for row in manifest.exclusions] == ["duplicate_slide_id"]
    (tmp_path / "clinical.csv").write_text("patient_id,label\nNA,1\nP1,0\nnan,1\n")
    clinical = read_clinical(tmp_path / "clinical.csv", "patient_id")
    assert (sorted(clinical.cells), clinical.n_without_id) == (["P1"], 2)


DOUBLES = (
    "slide_id,patient_id,path\na,P1,a.svs\na,P1,a.svs\nb,P1,b.svs\nb,P2,b.svs\n"
    "c,P3,c.svs\nc2,P4,./c.svs\nd,P5,d.svs\nlink,P6,link.svs\n"
)


def test_duplicates(tmp_path):
    (tmp_path / "link.svs").symlink_to("d.svs")
    manifest = _manifest(tmp_path, DOUBLES)
    assert [row.slide_id for row in manifest.rows] == ["a"]
    assert [(row["slide_id"], row["reason"]) for row in manifest.exclusions] == [
        ("a", "duplicate_slide_id"),
        ("b", "conflicting_slide_id"),
        ("b", "conflicting_slide_id"),
        ("c", "duplicate_path"),
        ("c2", "duplicate_path"),
        ("d", "duplicate_path"),
        ("link", "duplicate_path"),
    ]


def test_the_plan_reads_a_manifest_without_looking_at_slides(tmp_path, monkeypatch):
    (tmp_path / "manifest.csv").write_text(DOUBLES)

    def touched(*_):
        raise AssertionError("looked at a file")

    monkeypatch.setattr(os.path, "realpath", touched)
    manifest = read_manifest(tmp_path / "manifest.csv", files="ignore")
    assert [row.slide_id for row in manifest.rows] == ["a", "d", "link"]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("slide_id,path\na,a.svs\n", None, "patient_id"),
        ("slide_id,patient_id,path\n", None, "no row"),
        ("slide_id,patient_id,path\na,P,a.svs\n", {"mpp": "um"}, "'um'"),
        ("slide_id,patient_id,path\na,P,a.svs\n", {"mask": "m"}, "'m'"),
        ("slide_id,patient_id,path\na,P,a.svs\n", {"slide": "x"}, "unknown field"),
    ],
)
def test_unusable_manifests_are_refused(tmp_path, text, columns, message):
    with pytest.raises(InputError, match=message):
        _manifest(tmp_path, text, columns=columns)


def test_masks_come_from_the_column_or_from_the_folder(tmp_path):
    (tmp_path / "masks").mkdir()
    for name in ("b.png", "c.geojson", "c.png"):
        Image.new("L", (4, 4)).save(tmp_path / "masks" / name, format="PNG")
    text = "slide_id,patient_id,path,mask\na,P1,a.svs,mine/a.png\nb,P1,b.svs,\nc,P2,c.svs,\nd,P3,d.svs,\n"
    rows = _manifest(tmp_path, text, mask_dir=tmp_path / "masks").rows
    assert [row.mask and row.mask.relative_to(tmp_path).as_posix() for row in rows] == [
        "mine/a.png",
        "masks/b.png",
        "masks/c.geojson",
        None,
    ]
    assert all("mask" not in row.labels for row in rows)


def test_rows_of_a_patient_are_merged_cell_by_cell(tmp_path):
    (tmp_path / "c.csv").write_text(
        ",case,stage,grade,sex\n0,P1,II,N/A,f\n1,P1,II,high,f\n2,P2,I,low,m\n3,P2,III,low,\n4,,IV,low,m\n"
    )
    clinical = read_clinical(tmp_path / "c.csv", "case")
    assert clinical.columns == ["column 1", "stage", "grade", "sex"]
    assert (clinical.n_rows, clinical.n_without_id, clinical.n_duplicate_rows) == (5, 1, 2)
    assert clinical.cells["P1"] == {"column 1": "", "stage": "II", "grade": "high", "sex": "f"}
    # Stage I against III: there is no telling which is right, so neither is used.
    assert clinical.cells["P2"] == {"column 1": "", "stage": "", "grade": "low", "sex": "m"}
    assert clinical.conflicts == {"column 1": ["P1", "P2"], "stage": ["P2"]}


def test_a_clinical_table_without_the_column_is_refused(tmp_path):
    (tmp_path / "c.csv").write_text("case,stage\nP1,II\n")
    with pytest.raises(InputError, match=r"no column 'PATIENT'.*case, stage"):
        read_clinical(tmp_path / "c.csv", "PATIENT")


@pytest.mark.parametrize(
    ("cell", "blank"), [("", True), (" N/A ", True), ("NaN", True), ("0", False), ("no", False)]
)
def test_blank_cells(cell, blank):
    assert is_blank(cell) is blank


def test_real_cohort(shared_data):
    path = shared_data / "cohorts" / "lung_composite" / "slides.csv"
    if not path.exists():
        pytest.skip("no lung_composite cohort")
    manifest = read_manifest(path)
    assert (manifest.n_rows, len(manifest.rows), manifest.exclusions) == (72, 72, [])
    assert len({row.patient_id for row in manifest.rows}) == 60


def _real(shared_data, name):
    path = shared_data / "tables" / name
    if not path.is_file():
        pytest.skip(f"no {name}")
    return path


def test_real_slide_and_clinical_tables_join(shared_data):
    columns = {"slide_id": "FILENAME", "patient_id": "PATIENT", "path": "FILENAME"}
    manifest = read_manifest(
        _real(shared_data, "TCGA-CRC-DX_SLIDE.csv"), columns, suffix=".svs", files="ignore"
    )
    clinical = read_clinical(_real(shared_data, "TCGA-CRC-DX_CLINI.xlsx"), "PATIENT")
    assert (manifest.n_rows, len(manifest.rows), len(manifest.patients)) == (1971, 1971, 616)
    assert (clinical.n_rows, len(clinical.cells), clinical.conflicts) == (628, 628, {})
    assert len(manifest.patients & set(clinical.cells)) == 614


def test_real_table_with_many_rows_a_patient(shared_data):
    clinical = read_clinical(_real(shared_data, "clinical_tcga_coadread.csv"), "case_id")
    assert (clinical.n_rows, len(clinical.cells), clinical.n_duplicate_rows) == (1441, 1374, 67)
    # The unnamed first column counts rows; the subtype of four patients is given as both COAD and READ.
    assert {name: len(patients) for name, patients in clinical.conflicts.items()} == {
        "column 1": 67,
        "subtype": 4,
    }


def test_real_table_without_patients_takes_the_slide_for_the_patient(shared_data):
    columns = {"patient_id": "slide_id", "path": "slide_id"}
    manifest = read_manifest(_real(shared_data, "PANDA.csv"), columns, suffix=".tiff", files="ignore")
    assert len(manifest.rows) == len(manifest.patients) == manifest.n_rows > 9000
    assert manifest.label_columns == ["data_provider", "label"]

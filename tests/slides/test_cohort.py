"""Manifests, joins and the flow of slides."""

import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json
from acpbench.slides.cohort import cohort_counts, join_cohort, read_manifest, write_cohort

OK = {"status": "ok", "mpp_x": 0.5, "width_px": 10, "height_px": 20}


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


def test_tsv_with_bom_and_mapped_columns(tmp_path):
    text = "\ufeffFILENAME\tPATIENT\tID\tum\ty\na.svs\tP1\ta\t0.5\t1\n"
    columns = {"slide_id": "ID", "patient_id": "PATIENT", "path": "FILENAME", "mpp": "um"}
    (row,) = _manifest(tmp_path, text, columns=columns).rows
    assert (row.slide_id, row.patient_id, row.mpp, row.labels) == ("a", "P1", 0.5, {"y": "1"})


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
        ("a,P1,a.svs,nan", "bad_mpp"),
    ],
)
def test_bad_rows_are_excluded_with_their_row_number(tmp_path, line, reason):
    manifest = _manifest(tmp_path, f"slide_id,patient_id,path,mpp\n{line}\nb,P2,b.svs,\n")
    assert [row.slide_id for row in manifest.rows] == ["b"]
    (out,) = manifest.exclusions
    assert (out["stage"], out["reason"]) == ("manifest", reason)
    assert out["detail"].startswith("row 2:")


def test_duplicates(tmp_path):
    manifest = _manifest(
        tmp_path,
        "slide_id,patient_id,path\na,P1,a.svs\na,P1,a.svs\nb,P1,b.svs\nb,P2,b.svs\nc,P3,c.svs\nc2,P4,./c.svs\nd,P5,d.svs\n",
    )
    assert [row.slide_id for row in manifest.rows] == ["a", "d"]
    assert [(row["slide_id"], row["reason"]) for row in manifest.exclusions] == [
        ("a", "duplicate_slide_id"),
        ("b", "conflicting_slide_id"),
        ("b", "conflicting_slide_id"),
        ("c", "duplicate_path"),
        ("c2", "duplicate_path"),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("slide_id,path\na,a.svs\n", None, "patient_id"),
        ("slide_id,patient_id,path\n", None, "no row"),
        ("slide_id,patient_id,path\na,P,a.svs\n", {"mpp": "um"}, "'um'"),
        ("slide_id,patient_id,path\na,P,a.svs\n", {"slide": "x"}, "unknown field"),
    ],
)
def test_unusable_manifests_are_refused(tmp_path, text, columns, message):
    with pytest.raises(InputError, match=message):
        _manifest(tmp_path, text, columns=columns)


def test_each_row_ends_in_exactly_one_table(tmp_path):
    manifest = _manifest(
        tmp_path, "slide_id,patient_id,path,y\na,P1,a.svs,1\nb,P1,b.svs,0\nc,P2,c.svs,1\nd,P3,d.svs,0\n"
    )
    qualities = {"a": OK, "b": {"status": "no_mpp", "detail": "none"}, "c": OK}
    counts = {
        "a": {"status": "ok", "n_tiles": 7},
        "c": {"status": "too_few_tiles", "n_tiles": 0, "detail": "2 tiles"},
    }
    slides, exclusions = join_cohort(manifest.rows, qualities, counts)
    assert slides == [
        {
            "y": "1",
            "slide_id": "a",
            "patient_id": "P1",
            "path": "a.svs",
            "mpp": 0.5,
            "width_px": 10,
            "height_px": 20,
            "n_tiles": 7,
        }
    ]
    assert [(row["slide_id"], row["stage"], row["reason"], row["detail"]) for row in exclusions] == [
        ("b", "inspect", "no_mpp", "none"),
        ("c", "tile", "too_few_tiles", "2 tiles"),
        ("d", "inspect", "no_result", "no result of the inspect step"),
    ]


def test_files_and_flow(tmp_path):
    manifest = _manifest(
        tmp_path, "slide_id,patient_id,path,y\na,P1,a.svs,1\nb,P1,b.svs,0\nc,P2,c.svs,1\nx,P3,x.svs,0\n"
    )
    qualities = {"a": OK, "b": OK, "c": {"status": "unreadable"}}
    tiles = {name: {"status": "ok", "n_tiles": 5} for name in "ab"}
    counts = write_cohort(tmp_path / "out", manifest, qualities, tiles)
    assert read_json(tmp_path / "out" / "counts.json") == counts
    assert [(s["stage"], s["n_in"], s["n_excluded"], s["n_out"]) for s in counts["steps"]] == [
        ("manifest", 4, 1, 3),
        ("inspect", 3, 1, 2),
        ("tile", 2, 0, 2),
        ("features", 2, 0, 2),
    ]
    assert counts["steps"][0]["excluded"] == {"missing_file": 1}
    assert (counts["n_slides"], counts["n_patients"], counts["n_patients_lost"]) == (2, 1, 2)
    assert counts["slides_per_patient"] == {"2": 1}
    rows = read_csv(tmp_path / "out" / "slides.csv")
    assert list(rows[0]) == ["slide_id", "patient_id", "path", "mpp", "width_px", "height_px", "n_tiles", "y"]
    assert [row["slide_id"] for row in rows] == ["a", "b"]
    assert [row["reason"] for row in read_csv(tmp_path / "out" / "exclusions.csv")] == [
        "missing_file",
        "unreadable",
    ]


def test_counts_refuse_lost_rows():
    with pytest.raises(ValueError, match="3 manifest rows"):
        cohort_counts(3, [{"patient_id": "P"}], [])


def test_real_manifest(shared_data):
    path = shared_data / "cohorts" / "lung_composite" / "slides.csv"
    if not path.exists():
        pytest.skip("no lung_composite cohort")
    manifest = read_manifest(path)
    assert (manifest.n_rows, len(manifest.rows), manifest.exclusions) == (72, 72, [])
    assert len({row.patient_id for row in manifest.rows}) == 60

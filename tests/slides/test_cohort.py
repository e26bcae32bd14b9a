"""The join of a cohort, and the flow of slides and patients through it."""

import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json
from acpbench.slides.cohort import SLIDE_COLUMNS, join_cohort, write_cohort
from acpbench.slides.consort import STEPS, consort_flow
from acpbench.slides.errors import STATUSES
from acpbench.slides.manifest import exclusion, read_clinical, read_manifest

OK = {"status": "ok", "mpp_x": 0.5, "width_px": 10, "height_px": 20, "size_bytes": 100}
TILES = {"status": "ok", "n_tiles": 7}


def _manifest(tmp_path, text, slides=("a", "b", "c", "d"), **options):
    for name in slides:
        (tmp_path / f"{name}.svs").write_bytes(name.encode())
    (tmp_path / "manifest.csv").write_text(text, encoding="utf-8")
    return read_manifest(tmp_path / "manifest.csv", **options)


def test_each_row_ends_in_exactly_one_table(tmp_path):
    manifest = _manifest(
        tmp_path, "slide_id,patient_id,path,y\na,P1,a.svs,1\nb,P1,b.svs,0\nc,P2,c.svs,1\nd,P3,d.svs,0\n"
    )
    qualities = {"a": OK, "b": {"status": "no_mpp", "detail": "none"}, "c": OK}
    counts = {
        "a": TILES | {"sha256": "ab"},
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
            "size_bytes": 100,
            "sha256": "ab",
        }
    ]
    assert [(row["slide_id"], row["stage"], row["reason"], row["detail"]) for row in exclusions] == [
        ("b", "inspect", "no_mpp", "none"),
        ("c", "tile", "too_few_tiles", "2 tiles"),
        ("d", "inspect", "no_result", "no result of the inspect step"),
    ]


def test_the_same_bytes_under_two_ids_are_no_two_slides(tmp_path):
    """A copy of a slide is found by its content; kept, it could lie on both sides of a split."""
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,P1,a.svs\nb,P2,b.svs\nc,P3,c.svs\n")
    counts = {name: TILES | {"sha256": content} for name, content in (("a", "x"), ("b", "x"), ("c", "y"))}
    slides, exclusions = join_cohort(manifest.rows, dict.fromkeys("abc", OK), counts)
    assert [row["slide_id"] for row in slides] == ["c"]
    assert [(row["slide_id"], row["reason"]) for row in exclusions] == [
        ("a", "duplicate_content"), ("b", "duplicate_content"),
    ]  # fmt: skip
    assert exclusions[0]["detail"] == "2 slides have the same bytes: a, b"


# One row for each way out of the flow; two patients have a second slide.
EVERY_WAY = """slide_id,patient_id,path,mpp,y
ok1,P1,ok1.svs,,1
ok2,P1,ok2.svs,,
../x,P2,x.svs,,1
nompp,P2,nompp.svs,wide,1
dup,P3,dup.svs,,1
dup,P3,dup.svs,,1
gone,P4,gone.svs,,1
broken,P1,broken.svs,,1
nospacing,P5,nospacing.svs,,1
coarse,P5,coarse.svs,,1
empty,P6,empty.svs,,1
filtered,P3,filtered.svs,,1
few,P7,few.svs,,1
stranger,P8,stranger.svs,,1
"""


def _outcome(status, reason=None):
    return {"status": status, "reason": reason, "detail": f"it is {status}"}


def _every_way(tmp_path):
    names = ["ok1", "ok2", "dup", "broken", "nospacing", "coarse", "empty", "filtered", "few", "stranger"]
    manifest = _manifest(tmp_path, EVERY_WAY, slides=names, columns={"mpp": "mpp"}, files="resolve")
    (tmp_path / "clinical.csv").write_text("patient_id,stage\nP1,II\nP3,I\nP7,I\nP99,IV\n")
    bad = {
        "gone": _outcome("unreadable", "missing_file"),
        "broken": _outcome("unreadable", "open_failed"),
        "nospacing": _outcome("no_mpp"),
        "empty": _outcome("empty_tissue"),
    }
    qualities = {row.slide_id: bad.get(row.slide_id, OK) for row in manifest.rows}
    tiles = {row.slide_id: TILES | {"sha256": row.slide_id * 2} for row in manifest.rows} | {
        "coarse": _outcome("too_coarse"),
        "filtered": _outcome("emptied_by_filter"),
        "few": _outcome("too_few_tiles"),
    }
    return manifest, qualities, tiles, read_clinical(tmp_path / "clinical.csv", "patient_id")


def test_flow_adds_up_at_every_step_for_slides_and_patients(tmp_path):
    manifest, qualities, tiles, clinical = _every_way(tmp_path)
    flow = write_cohort(tmp_path / "out", manifest, qualities, tiles, clinical, name="demo")
    assert read_json(tmp_path / "out" / "consort.json") == flow
    assert (flow["n_rows"], flow["n_patients"]) == (14, 8)
    steps = [(s["step"], s["n_slides_out"], s["n_patients_out"], s["excluded"]) for s in flow["steps"]]
    assert steps == [
        ("valid_row", 12, 7, {"bad_id": 1, "bad_mpp": 1}),  # P2 is lost
        ("unique", 11, 7, {"duplicate_slide_id": 1}),
        ("file_present", 10, 6, {"missing_file": 1}),  # P4
        ("readable", 9, 6, {"unreadable": 1}),
        ("spacing", 7, 5, {"no_mpp": 1, "too_coarse": 1}),  # P5
        ("tissue", 5, 4, {"emptied_by_filter": 1, "empty_tissue": 1}),  # P6
        ("enough_tiles", 4, 3, {"too_few_tiles": 1}),  # P7
        ("clinical", 3, 2, {"no_clinical_row": 1}),  # P8
    ]
    slides_in, patients_in = flow["n_rows"], flow["n_patients"]
    for step in flow["steps"]:
        assert (step["n_slides_in"], step["n_patients_in"]) == (slides_in, patients_in)
        assert step["n_slides_in"] - step["n_slides_excluded"] == step["n_slides_out"]
        assert step["n_patients_in"] - step["n_patients_lost"] == step["n_patients_out"]
        assert sum(step["excluded"].values()) == step["n_slides_excluded"]
        slides_in, patients_in = step["n_slides_out"], step["n_patients_out"]
    assert (flow["n_slides"], flow["n_patients_left"]) == (slides_in, patients_in) == (3, 2)
    assert flow["slides_per_patient"] == {"1": 1, "2": 1} and flow["size_bytes"] == 300
    blank = {"n_slides": 2, "n_slides_blank": 1, "n_patients": 2, "n_patients_blank": 0}
    assert flow["labels"]["y"] == blank | {"n_patients_contradictory": 0}
    assert flow["clinical"]["n_patients_matched"] == 3
    assert flow["clinical"]["n_patients_only_in_manifest"] == 5
    assert flow["clinical"]["n_patients_only_in_clinical"] == 1


def test_files_of_a_cohort(tmp_path):
    manifest, qualities, tiles, clinical = _every_way(tmp_path)
    write_cohort(tmp_path / "out", manifest, qualities, tiles, clinical, name="demo")
    rows = read_csv(tmp_path / "out" / "slides.csv")
    assert list(rows[0]) == [*SLIDE_COLUMNS, "y", "stage"]
    assert [(row["slide_id"], row["stage"], row["sha256"], row["size_bytes"]) for row in rows] == [
        ("ok1", "II", "ok1ok1", "100"),
        ("ok2", "II", "ok2ok2", "100"),
        ("dup", "I", "dupdup", "100"),
    ]
    dropped = read_csv(tmp_path / "out" / "exclusions.csv")
    assert len(dropped) + len(rows) == 14
    assert {row["slide_id"]: row["stage"] for row in dropped if row["slide_id"] != "dup"} == {
        "../x": "manifest", "nompp": "manifest", "gone": "manifest", "broken": "inspect",
        "nospacing": "inspect", "empty": "inspect", "coarse": "tile", "filtered": "tile",
        "few": "tile", "stranger": "clinical",
    }  # fmt: skip
    page = (tmp_path / "out" / "consort.md").read_text()
    assert "| Rows in the manifest | 14 | 8 | | | |" in page
    assert "| File present | 10 | 6 | 1 | 1 | 1 missing_file |" in page
    assert "3 patients in both tables, 5 only in the manifest, 1 only in the clinical table" in page


def test_every_status_of_a_slide_has_its_step():
    reasons = [reason for _, found in STEPS.values() for reason in found]
    assert len(reasons) == len(set(reasons))
    assert set(STATUSES) - {"ok"} <= set(reasons)


def test_without_a_clinical_table_there_is_no_such_step(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,P1,a.svs\n")
    flow = write_cohort(tmp_path / "out", manifest, {"a": OK}, {"a": TILES}, name="c")
    assert "clinical" not in [step["step"] for step in flow["steps"]] and flow["clinical"] is None


def test_a_contradictory_clinical_cell_is_blank_and_counted(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,P1,a.svs\nb,P2,b.svs\n")
    (tmp_path / "c.csv").write_text("patient_id,stage\nP1,I\nP1,II\nP2,I\n")
    clinical = read_clinical(tmp_path / "c.csv", "patient_id")
    flow = write_cohort(
        tmp_path / "out", manifest, {"a": OK, "b": OK}, {"a": TILES, "b": TILES}, clinical, name="c"
    )
    assert [row["stage"] for row in read_csv(tmp_path / "out" / "slides.csv")] == ["", "I"]
    assert flow["labels"]["stage"] == {
        "n_slides": 1, "n_slides_blank": 1, "n_patients": 1, "n_patients_blank": 1,
        "n_patients_contradictory": 1,
    }  # fmt: skip
    assert flow["clinical"]["contradictory_cells"] == {"stage": 1}


def test_the_manifest_wins_over_the_clinical_table(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path,grade\na,P1,a.svs,high\n")
    (tmp_path / "c.csv").write_text("patient_id,grade,sha256\nP1,low,mine\n")
    clinical = read_clinical(tmp_path / "c.csv", "patient_id")
    flow = write_cohort(
        tmp_path / "out", manifest, {"a": OK}, {"a": TILES | {"sha256": "ab"}}, clinical, name="c"
    )
    (row,) = read_csv(tmp_path / "out" / "slides.csv")
    assert (row["grade"], row["sha256"]) == ("high", "ab")
    assert flow["clinical"]["columns_of_the_manifest_kept"] == ["grade"]


def test_a_cohort_without_a_slide_left_is_an_error_that_says_why_and_writes_nothing(tmp_path):
    text = "slide_id,patient_id,path\na,P1,a.svs\nb,P2,b.svs\nx,P3,x.svs\n"
    manifest = _manifest(tmp_path, text, slides=("a",))
    bad = {"a": {"status": "no_mpp", "detail": "no spacing"}}
    with pytest.raises(InputError) as caught:
        write_cohort(tmp_path / "out", manifest, bad, {}, name="mine")
    message = str(caught.value)
    assert "mine: none of 3 rows is usable: 2 missing_file, 1 no_mpp" in message
    assert "b: row 3: no slide file at" in message and "\n" not in message
    assert not (tmp_path / "out").exists()


def test_patient_ids_that_never_match_are_shown_side_by_side(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,TCGA-01,a.svs\n")
    (tmp_path / "c.csv").write_text("patient_id,stage\nP-0000674,I\n")
    clinical = read_clinical(tmp_path / "c.csv", "patient_id")
    with pytest.raises(InputError, match=r"manifest 'TCGA-01', clinical table 'P-0000674'"):
        write_cohort(tmp_path / "out", manifest, {"a": OK}, {"a": TILES}, clinical, name="c")


def test_flow_refuses_lost_rows_and_unknown_reasons(tmp_path):
    manifest = _manifest(tmp_path, "slide_id,patient_id,path\na,P1,a.svs\nb,P2,b.svs\n")
    with pytest.raises(ValueError, match="2 manifest rows"):
        consort_flow(manifest, [{"patient_id": "P1"}], [], [])
    with pytest.raises(ValueError, match="no step"):
        consort_flow(manifest, [{"patient_id": "P1"}], [exclusion("b", "P2", "tile", "whim", "")], [])


def test_a_table_cannot_break_out_of_the_page(tmp_path):
    manifest = _manifest(tmp_path, 'slide_id,patient_id,path,"a|b <script>"\na,P1,a.svs,1\n')
    write_cohort(tmp_path / "out", manifest, {"a": OK}, {"a": TILES}, name="c")
    assert "| a\\|b &lt;script> | 1 |" in (tmp_path / "out" / "consort.md").read_text()

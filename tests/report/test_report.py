"""The study report on a small synthetic tree: complete, honest about gaps, safe and reproducible."""

from __future__ import annotations

import csv
import hashlib
import html.parser
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from acpbench.cli.report import report as report_command
from acpbench.core.errors import InputError
from acpbench.report import render, summary, tables
from acpbench.report.collect import OFFLINE_JUDGE, collect, load_study
from acpbench.report.figures import FIGURES
from tests.report import fixture


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(results, study file, report folder), written once."""
    results = tmp_path_factory.mktemp("study") / "results"
    study = fixture.build(results)
    render.write_report(results, study, results / "report")
    return results, study, results / "report"


@pytest.fixture(scope="module")
def data(built):
    results, study, _ = built
    return collect(results, load_study(study))


class Page(html.parser.HTMLParser):
    """Collects tags, links, ids and visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._skip = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skip -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._skip:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def attribute(self, *names: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags for name in names if name in attrs]


def pages(folder: Path) -> list[Path]:
    return [folder / "index.html", *sorted((folder / "trajectories").glob("*.html"))]


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / "tables" / f"{name}.csv", newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle, strict=True))


def test_index_has_every_section_in_order(built):
    page = Page(built[2] / "index.html")
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "h2"]
    assert ids == [
        "overall", "stages", "passes", "lanes", "funnel", "reference", "cohorts", "reflection", "coverage",
        "trajectories", "methods",
    ]  # fmt: skip
    targets = set(page.attribute("id"))
    assert {link[1:] for link in page.attribute("href") if link.startswith("#")} <= targets


def test_opening_says_what_was_run(built):
    words = Page(built[2] / "index.html").words
    assert (
        "5 of 6 trajectories recorded (4 completed, 1 agent error, 1 not recorded); 4 of 6 scored." in words
    )
    assert OFFLINE_JUDGE in words
    assert "Label access: heldout" in words
    assert "Synthetic data." in words


def test_means_count_what_exists_and_never_zero_for_missing(data):
    codex = summary.of_group(data, "codex")
    # 0.9, 0.8, 0.8, 0.7 → 0.8 in one trajectory; the crashed one has no value and stays out of the mean.
    mean = summary.mean_at(codex, "workflow_score.json", "stage_mean")
    assert (mean.value, mean.n, mean.total) == (pytest.approx(0.8), 1, 2)
    # planning: (0.9 + 0.2) / 2; diagnosis of the crashed run is null.
    assert summary.mean_at(codex, "workflow_score.json", "stages", "planning").value == pytest.approx(0.55)
    assert summary.mean_at(codex, "workflow_score.json", "stages", "diagnosis").n == 1
    nothing = summary.mean_at(summary.of_group(data, "claude"), "r6.json", "score")
    assert (nothing.value, nothing.n, nothing.total) == (None, 0, 2)
    assert "is missing" in nothing.reason


def test_a_null_decision_is_in_neither_k_nor_n(data):
    codex = summary.of_group(data, "codex")
    assert summary.passes(codex, "0.80", "stage_mean") == (1, 1)
    # item_weighted = 0.15 * 2.5 + 0.55 * 0.7 = 0.76
    assert summary.passes(codex, "0.75", "item_weighted") == (1, 1)
    assert summary.passes(codex, "0.80", "item_weighted") == (0, 1)
    assert summary.passes(data.trajectories, "0.75", "stage_mean") == (1, 4)


def test_funnel_and_flow_counts(data):
    # 5 of 6 have a diagnostic file; the crashed one stops at its candidate; survival maps no probability.
    assert summary.funnel(data.trajectories) == {
        "candidate": 5, "selected": 4, "normalised": 4, "probability": 3,
    }  # fmt: skip
    flow = summary.cohort_flow(data.cohorts[0])
    # 10 slides in slides.csv + 1 dropped before; s09 was dropped later; p00..p04 remain (p04 through s08).
    assert (flow["considered"], flow["excluded"], flow["included"], flow["patients"]) == (11, 2, 9, 5)


def test_index_prints_n_of_n_and_reasons(built):
    page = Page(built[2] / "index.html")
    assert "0.800 1 of 2" in page.words and "0.556 4 of 6" in page.words
    titles = [
        attrs["title"] or "" for tag, attrs in page.tags if tag == "abbr" and attrs.get("class") == "null"
    ]
    assert titles and all(titles)
    assert any("r6.json is missing" in title for title in titles)
    assert any("no event in fold 0" in title for title in titles)
    assert "11 slides considered, 2 excluded, 9 included from 5 patients" in page.words


def test_hostile_text_stays_text(built):
    """No tag, attribute or script of an agent gets into any page; what it wrote is shown."""
    for path in pages(built[2]):
        raw = path.read_text(encoding="utf-8")
        page = Page(path)
        assert "\x00" not in raw and "\u202e" not in raw
        assert raw.count("<script") == 1
        assert [tag for tag, attrs in page.tags if any(name.startswith("on") for name in attrs)] == []
        assert all(
            attrs.get("src", "").startswith("data:image/jpeg;base64,") for t, attrs in page.tags if t == "img"
        )
    crashed = Page(built[2] / "trajectories" / "codex__demo_survival__1.html")
    assert fixture.SCRIPT in crashed.words and "[U+202E]" in crashed.words


def test_the_hostile_trajectory_is_bounded_and_explained(built):
    path = built[2] / "trajectories" / "codex__demo_survival__1.html"
    words = Page(path).words
    report = built[0] / "trajectories/codex/demo_survival/1/run/workspace/reports/report.md"
    assert report.stat().st_size > 10_000_000
    assert path.stat().st_size < 600_000
    assert f"of {report.stat().st_size} bytes are shown" in words
    assert "plan/workflow_spec.json is not valid JSON" in words
    assert "no end" in words and "Unreadable lines in the log: 1." in words
    assert "bad.jpg" in words and "is not a readable JPEG or PNG" in words
    assert "root:" not in path.read_text(encoding="utf-8"), "a link or a citation left the workspace"


def test_nothing_is_requested_from_outside(built):
    for path in pages(built[2]):
        page = Page(path)
        for link in page.attribute("href", "src", "xlink:href", "action", "srcset", "poster"):
            assert not re.match(r"(?i)\s*(https?:|//|javascript:|file:)", link), link
            if not link.startswith(("#", "data:")):
                assert (path.parent / link.partition("#")[0]).is_file(), link
        assert not re.search(r"(?i)@import|url\(\s*['\"]?(?!#)", path.read_text(encoding="utf-8"))
        policy = next(attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs)
        assert policy.startswith("default-src 'none'")


def test_policy_allows_exactly_our_script(built):
    import base64

    raw = (built[2] / "index.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", raw, re.S).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in raw


def test_every_trajectory_is_linked_even_without_a_record(built):
    links = set(Page(built[2] / "index.html").attribute("href"))
    for group in fixture.GROUPS:
        for task, _ in fixture.TASKS:
            assert f"trajectories/{group['id']}__{task}__1.html" in links
    absent = Page(built[2] / "trajectories" / "claude__demo_survival__1.html").words
    assert "not recorded: run.json is missing or unreadable" in absent
    assert "workflow_score.json is missing" in absent


def test_trajectory_page_shows_the_run(built):
    page = Page(built[2] / "trajectories" / "codex__demo_pleomorphism__1.html")
    for words in (
        "high against low", "extract_features", "slide s03 is unreadable", "mil.dropout: 0.1 → 0.25",
        "40 items", "stage_mean", "a" * 64, "This is not a diagnosis", "<b>verbatim</b>",
    ):  # fmt: skip
        assert words in page.words, words
    assert len([attrs for tag, attrs in page.tags if "data-row" in attrs]) == 40
    assert any(tag == "img" and attrs["alt"] for tag, attrs in page.tags)


def test_accessible_markup(built):
    for path in pages(built[2]):
        page = Page(path)
        assert ("html", {"lang": "en"}) in page.tags
        assert all(attrs.get("scope") for tag, attrs in page.tags if tag == "th")
        assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
        ids = page.attribute("id")
        assert len(set(ids)) == len(ids)
    figures = [attrs for tag, attrs in Page(built[2] / "index.html").tags if tag == "svg"]
    assert len(figures) == 6 and all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)


def test_tables_parse_and_agree(built):
    folder = built[2]
    for name in tables._COLUMNS:
        rows = table(folder, name)
        assert rows and all(None not in row and None not in row.values() for row in rows), name
    groups = {row["group"]: row for row in table(folder, "groups")}
    assert groups["codex"]["stage_mean_n"] == "1" and groups["codex"]["stage_mean_N"] == "2"
    assert groups["codex"]["n_items_not_implemented"] == "2"
    absent = next(
        row for row in table(folder, "trajectories") if row["trajectory"] == "claude/demo_survival/1"
    )
    assert absent["stage_mean"] == "" and absent["run_status"] == "not recorded"
    control = [
        row for row in table(folder, "reference") if row["role"] == "control" and row["primary"] == "yes"
    ]
    assert [(row["value"], row["null_reason"]) for row in control] == [
        ("0.61", ""),
        ("", "no event in fold 0"),
    ]
    models = [row for row in table(folder, "reference") if row["role"] == "model" and row["primary"] == "yes"]
    assert [
        (row["over_control"], row["over_control_low"], row["over_control_high"], row["over_control_p"])
        for row in models
    ] == [("0.13", "-0.02", "0.27", "0.09"), ("", "", "", "")]
    assert "\u22120.020 to 0.270" in (folder / "index.html").read_text(encoding="utf-8")
    folds = [row for row in table(folder, "folds") if row["encoder"] == "tiny_vit"]
    assert [(row["fold"], row["n"], row["value"], row["null_reason"]) for row in folds[:2]] == [
        ("0", "24", "0.79", ""),
        ("1", "24", "", "only class low in this fold"),
    ]
    predicted = {(row["n"], row["n_expected"]) for row in table(folder, "diagnostic")}
    assert predicted == {("11", "12"), ("", "")}
    assert "test, n 11 of 12, 1 of 1" in " ".join(Page(folder / "index.html").words.split())
    lanes = {row["lane"] for row in table(folder, "lanes")}
    assert lanes == {"automation", "diagnostic", "clinical workflow"}


def test_folds_and_calibration_of_the_reference_are_shown(built):
    page = Page(built[2] / "index.html")
    assert "0.790 (n 24)" in page.words
    assert "no value: only class low in this fold" in {attrs.get("aria-label") for _, attrs in page.tags}
    picture = (built[2] / "figures" / "reliability.svg").read_text(encoding="utf-8")
    # One panel a task with class probabilities, a line an encoder; the empty bin is no point.
    assert 'id="axes_1"' in picture and 'id="axes_2"' not in picture and "demo_survival" not in picture
    assert "tiny_vit, n 48" in picture and "color_stats (control), n 48" in picture


def test_a_reliability_table_that_does_not_hold_is_left_out(tmp_path):
    results = tmp_path / "results"
    study = fixture.build(results)
    for path in (results / "reference").glob("*/*/reliability.csv"):
        path.write_text("bin_low,n,mean_probability,observed\nx,1,9e999,0.5\n0.1,5,nan,0.5\n0.2,-3,0.2,7\n")
    render.write_report(results, study, tmp_path / "out")
    picture = (tmp_path / "out" / "figures" / "reliability.svg").read_text(encoding="utf-8")
    assert "no reliability table" in picture


def test_no_cell_is_a_formula(built):
    for path in (built[2] / "tables").glob("*.csv"):
        with open(path, newline="", encoding="utf-8") as handle:
            for row in csv.reader(handle):
                for cell in row:
                    assert cell[:1] not in "=+@\t\r" or cell == "", (path.name, cell)
    assert "'=HYPERLINK(1)" in {row["detail"] for row in table(built[2], "exclusions")}


def test_figures_in_both_formats(built):
    for name in FIGURES:
        assert (built[2] / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        svg = (built[2] / "figures" / f"{name}.svg").read_text()
        assert "<svg" in svg and "<dc:date>" not in svg


def test_rebuild_by_the_command_is_byte_identical(built, tmp_path):
    results, study, first = built
    second = tmp_path / "elsewhere" / "report"
    arguments = ["--results", str(results), "--study", str(study), "--output", str(second)]
    done = CliRunner().invoke(report_command, arguments)
    assert done.exit_code == 0 and done.output.strip() == str(second / "index.html")

    def digests(folder: Path) -> dict[str, str]:
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    assert digests(first) == digests(second)
    assert len(digests(first)) == 2 + 14 + 2 * len(FIGURES) + 6


def test_isolation_and_a_bad_end_are_said_first(built):
    pages_ = built[2] / "trajectories"
    crashed = Page(pages_ / "codex__demo_survival__1.html").words
    assert "This run did not complete: agent error." in crashed
    assert (
        "Unsandboxed." in crashed
        and "Unsandboxed: 1 of 5 recorded runs." in Page(built[2] / "index.html").words
    )
    fine = Page(pages_ / "codex__demo_pleomorphism__1.html").words
    assert "Unsandboxed." not in fine and "sandbox container" in fine and "did not complete" not in fine
    assert "Sandbox not stated." in Page(pages_ / "claude__demo_pleomorphism__1.html").words


def test_every_score_is_explained_and_leads_to_its_rules(built):
    for path, base in (
        (built[2] / "index.html", ""),
        (built[2] / "trajectories/codex__demo_survival__1.html", "../"),
    ):
        page = Page(path)
        for words in ("0.35 U + 0.35 N + 0.30 E", "0.25 D + 0.30 O", "How to read this page."):
            assert words in page.words
        targets = set(Page(built[2] / "scoring.html").attribute("id"))
        links = [link for link in page.attribute("href") if link.startswith(base + "scoring.html#")]
        assert len(links) >= 4 and {link.partition("#")[2] for link in links} <= targets


def test_every_item_has_status_reason_and_evidence(built):
    """Each of the 40 rows shows what it asks for: status, why, citation with excerpt, who decided."""
    raw = (built[2] / "trajectories" / "codex__demo_pleomorphism__1.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr data-row.*?</tr>", raw, re.S)
    assert len(rows) == 40
    for row in rows:
        assert 'class="status s-' in row and "plan names the endpoint" in row and "plan/plan.md#L3-L5" in row
        assert 'class="snippet"' in row and ("rule" in row or "offline cue judge" in row)
    assert (
        "20 judged by offline cue judge"
        in Page(built[2] / "trajectories/codex__demo_pleomorphism__1.html").words
    )


def test_pages_of_dropped_trajectories_go_and_nothing_else(tmp_path):
    (tmp_path / "results").mkdir()
    folder = tmp_path / "out" / "trajectories"
    folder.mkdir(parents=True)
    for name in ("old__task__1.html", "notes.html", "codex__demo_survival__1.html"):
        (folder / name).write_text("x")
    render.write_report(tmp_path / "results", fixture.study_file(tmp_path / "s.json"), tmp_path / "out")
    names = {path.name for path in folder.iterdir()}
    assert "old__task__1.html" not in names and "notes.html" in names and len(names) == 7


def test_groups_stand_in_the_configured_order_with_their_descriptions(tmp_path):
    path = tmp_path / "s.json"
    groups = [{"id": "a", "description": "First <b>."}, {"id": "b"}, {"id": "c"}]
    config = {"trajectories": {"groups": ["c", "a"]}}
    path.write_text(json.dumps({"study": "x", "groups": groups, "tasks": ["t"], "config": config}))
    assert [group.id for group in load_study(path).groups] == ["c", "a", "b"]
    (tmp_path / "results").mkdir()
    raw = render.write_report(tmp_path / "results", path, tmp_path / "out").read_text()
    assert "First &lt;b&gt;." in raw and "<b>." not in raw


def test_checkpoint_texts_come_from_the_rubric(tmp_path):
    results = tmp_path / "results"
    study = fixture.build(results)
    rubric = Path(__file__).parents[2] / "tasks" / "rubric.yaml"
    render.write_report(results, study, tmp_path / "out", rubric)
    words = Page(tmp_path / "out/trajectories/codex__demo_pleomorphism__1.html").words
    assert "The plan states the task's endpoint and label classes" in words
    assert render.checkpoint_texts(None) == {}


def test_an_empty_results_folder_still_gives_a_report(tmp_path):
    (tmp_path / "results").mkdir()
    index = render.write_report(
        tmp_path / "results", fixture.study_file(tmp_path / "s.json"), tmp_path / "out"
    )
    words = Page(index).words
    assert "0 of 6 trajectories recorded (6 not recorded); 0 of 6 scored." in words
    assert "slides.csv file does not exist" in words


def test_scores_of_the_wrong_type_are_missing_not_fatal(tmp_path):
    results = tmp_path / "results"
    study = fixture.build(results)
    folder = results / "trajectories/codex/demo_pleomorphism/1"
    for name in ("workflow_score.json", "diagnostic.json", "cwas3.json", "r6.json", "reflection.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({key: [1, {"a": "<b>"}] for key in content}))
    (folder / "adjudicated.jsonl").write_text(
        '{"stage": 3, "final_status": ["PASS"], "evidence_refs": 7}\n[1]\n'
    )
    (folder / "run" / "run.json").write_text(json.dumps({"run_status": 3, "t_start": 9e99, "wall_s": "x"}))
    page = Page(render.write_report(results, study, tmp_path / "out"))
    assert "3 of 6 scored." in page.words


def test_a_study_without_agents_has_a_report_of_its_reference(tmp_path):
    results = tmp_path / "results"
    content = json.loads(Path(fixture.build(results)).read_text()) | {"groups": [], "tasks": []}
    alone = tmp_path / "study.json"
    alone.write_text(json.dumps(content))
    page = Page(render.write_report(results, alone, tmp_path / "out"))
    assert all(encoder in page.words for encoder in content["encoders"])
    assert not list((tmp_path / "out").glob("trajectories/*.html"))


def test_bad_study_files_name_the_field(tmp_path):
    bad = tmp_path / "bad.json"
    for content, field in (
        ({"study": "x", "tasks": ["t"]}, "groups"),
        ({"study": "x", "groups": ["../g"], "tasks": ["t"]}, "groups"),
        ({"study": "x", "groups": ["g"], "tasks": ["t"], "replicates": 0}, "replicates"),
    ):
        bad.write_text(json.dumps(content))
        with pytest.raises(InputError, match=field):
            load_study(bad)

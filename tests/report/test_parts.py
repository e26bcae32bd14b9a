"""The small parts of the report: safe text, Markdown, citations, timeline, pictures and colours."""

from __future__ import annotations

import base64
import io
import json
import time

import pytest

from acpbench.core.errors import InputError
from acpbench.report import palette, pictures, timeline
from acpbench.report.markdown import to_html
from acpbench.report.render import duration_text, moment_text, number_text
from acpbench.report.snippets import Snippets
from acpbench.report.untrusted import clean, number, read_head, read_jsonl_head, short
from acpbench.trajectory.events import tool_calls
from tests.report.fixture import picture


def test_clean_makes_the_invisible_visible():
    assert clean("a\x00b\x1b[0m\r\nc\rd") == "a\u2400b\u241b[0m\nc\nd"
    assert clean("\u202etxt\ud800\u200b") == "[U+202E]txt[U+D800][U+200B]"
    assert short("a\n b" + "x" * 50, 10) == "a bxxxxxx…"


def test_number_takes_only_finite_numbers():
    assert [number(value) for value in (1, 0.5, True, "1", None, float("nan"), float("inf"), 10**400)] == [
        1.0, 0.5, None, None, None, None, None, None,
    ]  # fmt: skip


def test_read_head_cuts_between_characters(tmp_path):
    (tmp_path / "t.md").write_bytes("aé".encode() * 10)
    head = read_head(tmp_path, "t.md", max_bytes=5)  # a é(2) a, then half an é
    assert (head.text, head.shown_bytes, head.size_bytes, head.truncated) == ("aéa", 4, 30, True)
    assert read_head(tmp_path, "t.md", max_bytes=6).text == "aéaé"
    (tmp_path / "link").symlink_to(tmp_path / "t.md")
    for path in ("link", "../t.md", "nothing", "/etc/passwd"):
        with pytest.raises(InputError):
            read_head(tmp_path, path)


def test_jsonl_counts_torn_lines_and_stops(tmp_path):
    (tmp_path / "e.jsonl").write_text('{"a": 1}\n[2]\n\n{"a": 3}\n{"a": ')
    assert read_jsonl_head(tmp_path, "e.jsonl") == ([{"a": 1}, {"a": 3}], 2, False)
    assert read_jsonl_head(tmp_path, "e.jsonl", max_rows=1) == ([{"a": 1}], 0, True)


def test_markdown_is_a_safe_subset():
    assert to_html("# A <b>\n\ntext **bold** `x**y**`") == (
        "<h4>A &lt;b&gt;</h4>\n<p>text <strong>bold</strong> <code>x**y**</code></p>"
    )
    assert to_html("- a\n- [l](javascript:1)") == "<ul><li>a</li><li>[l](javascript:1)</li></ul>"
    assert to_html("```\n</pre><script>") == "<pre>&lt;/pre&gt;&lt;script&gt;</pre>"


def test_markdown_tables_lists_and_flow():
    assert to_html("| a | b |\n|---|:-:|\n| 1 < 2 | `x` |").endswith(
        '<table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
        "<tbody><tr><td>1 &lt; 2</td><td><code>x</code></td></tr></tbody></table></div>"
    )
    assert to_html("| a |\n| b <i> |") == "<pre>| a |\n| b &lt;i&gt; |</pre>"
    assert to_html("1. a\n   more\n2. b") == "<ol><li>a more</li><li>b</li></ol>"
    assert to_html("one\ntwo  \n*three* 2 * 3 * 4") == "<p>one two<br><em>three</em> 2 * 3 * 4</p>"
    assert to_html("## CWAS-3 = 1", top=1, anchors=True) == '<h2 id="cwas-3">CWAS-3 = 1</h2>'


def test_markdown_time_is_linear():
    started = time.perf_counter()
    to_html(("**" + "`" + "* " * 40 + "# ") * 500)
    to_html("|-" * 20000 + "\n" + "|--" * 20000)
    to_html("|a|\n" + "|--" * 20000 + "x")
    to_html("*a" * 20000)
    assert time.perf_counter() - started < 2


def test_snippets_resolve_inside_only(tmp_path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "m.json").write_text('{"metrics": {"AUROC": 0.7, "a/b": [1, 2]}}')
    (workspace / "p.md").write_text("one\ntwo\nthree\n")
    (tmp_path / "tools.jsonl").write_text('{"seq": 1}\n')
    shown = Snippets(tmp_path)
    assert shown.show("p.md#L2-L3")["text"] == "two\nthree"
    assert shown.show("m.json#/metrics/AUROC")["text"] == "0.7"
    assert shown.show("m.json#/metrics/a~1b/1")["text"] == "2"
    assert shown.show("run:tools.jsonl#L1")["text"] == '{"seq": 1}'
    assert shown.show("p.md")["file"] is None, "no manifest, no size"
    for ref in ("p.md", "p.md#L9", "m.json#/no", "../tools.jsonl#L1", "run:../x#L1", "p.md#L", 5):
        assert shown.show(ref)["text"] is None


def test_a_whole_file_shows_its_size_and_citations_lead_to_their_place(tmp_path):
    (tmp_path / "manifest.csv").write_text(
        f"path,size,sha256,mtime\noutputs/model.pt,12345,{'ab' * 32},2026-01-01T00:00:00Z\n"
    )
    shown = Snippets(tmp_path, {"call-3": "train_mil: ok"})
    assert shown.show("outputs/model.pt")["file"] == "12,345 bytes, sha256 abababababab…"
    assert shown.show("run:tools.jsonl#L3") == {
        "ref": "run:tools.jsonl#L3", "text": "train_mil: ok", "file": None, "link": "call-3",
    }  # fmt: skip
    assert shown.show("run:tools.jsonl#L4")["link"] is None, "a call that the page does not show"
    assert shown.show("plan/plan.md#L1")["link"] == "plan"


def test_a_long_excerpt_is_cut_and_says_so(tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "p.md").write_text("x" * 500 + "\n" + "a\nb\nc\nd\ne\n")
    shown = Snippets(tmp_path)
    assert shown.show("p.md#L1")["text"] == "x" * 280 + " …"
    assert shown.show("p.md#L2-L6")["text"] == "a\nb\nc\nd …"
    assert shown.show("p.md#L2-L5")["text"] == "a\nb\nc\nd"


def test_timeline_places_calls(tmp_path):
    def event(kind, call, moment, **more):
        return {"event": kind, "call_id": call, "tool": "t", "t": f"2026-01-01T00:00:{moment:02d}Z", **more}

    log = [
        event("start", "a", 10),
        event("end", "a", 30, exit_status="ok", cache="hit"),
        event("start", "b", 40),
        {"event": "start", "call_id": "c", "tool": "t", "t": "soon"},
    ]
    (tmp_path / "tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    found = timeline.rows(
        tool_calls(tmp_path), "2026-01-01T00:00:00Z", "2026-01-01T00:00:50Z", timeline.caches(log)
    )
    first, second, third = found["calls"]
    assert (first["left"], first["width"], first["duration_s"], first["status"]) == (20.0, 40.0, 20.0, "ok")
    assert (first["cache"], first["anchor"], second["cache"]) == ("hit", "call-1", None)
    assert (second["left"], second["status"], second["duration_s"]) == (80.0, "no end", None)
    assert second["anchor"] == "call-3" and third["left"] is None
    assert timeline.summary_line(first) == "t: ok"
    assert timeline.summary_line({**first, "step": "s4", "round": 0, "outputs": list("abcd")}) == (
        "t, step s4, round 0: ok; wrote a, b, c and more"
    )


def test_pictures_are_encoded_again_and_small():
    from PIL import Image

    uri = pictures.encode(picture((3000, 2000)))
    assert len(uri) <= pictures.MAX_PICTURE_BYTES + 40
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        assert image.format == "JPEG" and max(image.size) <= 900
    with pytest.raises(InputError):
        pictures.encode(b"<svg onload='alert(1)'/>")


@pytest.mark.parametrize("dark", [False, True])
def test_heat_text_has_contrast(dark):
    assert min(palette.contrast(*pair) for pair in palette.heat_scale(dark)) >= 4.5


def test_colours():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert min(palette.contrast(colour, palette.PAPER) for colour in palette.SERIES) >= 3
    assert palette.contrast(palette.MUTED, palette.PAPER) >= 4.5
    assert [palette.heat_step(value) for value in (0.0, 0.449, 1.0, 1.7, None)] == [0, 4, 10, 10, None]


def test_numbers_and_times_as_shown():
    assert (number_text(-0.12345), number_text(None)) == ("−0.123", None)
    assert [duration_text(s) for s in (0.25, 12.34, 245, 7380, None)] == [
        "250 ms", "12.3 s", "4 min 05 s", "2 h 03 min", None,
    ]  # fmt: skip
    assert moment_text("2026-01-02T03:04:05.678+01:00") == "2026-01-02 02:04:05 UTC"
    assert moment_text("<now>") == "<now>"

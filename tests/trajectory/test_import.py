"""``acp-bench import``: a whole record or one line of refusal, whatever the file holds."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from acpbench.cli.import_ import import_
from acpbench.core.errors import InputError
from acpbench.trajectory import importer
from acpbench.trajectory.detect import detect
from acpbench.trajectory.events import load_events
from acpbench.trajectory.importer import import_file
from acpbench.trajectory.record import load_run

CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "s1", "model": "m"},
    {"type": "assistant", "session_id": "s1", "message": {"id": "m1", "content": [
        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "TASK.md"}}]}},
    {"type": "user", "session_id": "s1", "message": {"content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "text"}]}},
    {"type": "result", "subtype": "success", "is_error": False, "session_id": "s1"},
]  # fmt: skip
EXPORT = {"info": {"id": "ses"}, "messages": [
    {"info": {"id": "m", "role": "user"}, "parts": [{"type": "text", "text": "x"}]}]}  # fmt: skip


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))
    return path


def test_a_record_holds_what_the_file_says_and_null_for_the_rest(tmp_path: Path) -> None:
    source = write(tmp_path / "no_name_helps.txt", *CLAUDE)
    record = import_file(source, tmp_path / "run", group="g", task="lung_egfr", replicate="3")
    assert load_run(tmp_path / "run") == record
    assert record.trajectory_id == "g/lung_egfr/3"
    assert (record.harness.name, record.harness.version, record.model) == (
        "claude_code",
        "unknown",
        {"model": "m"},
    )
    assert (record.label_access, record.sandbox, record.seed) == ("unknown", "unknown", None)
    assert (record.t_start, record.t_end, record.wall_s) == (None, None, None)
    assert (record.tokens, record.cost_usd, record.cost_source) == (None, None, None)
    assert record.digests.task is None
    assert record.imported is not None
    assert (record.imported.lines, record.imported.kept, record.imported.malformed) == (4, 4, 0)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "manifest.csv",
        "run.json",
        "stream.jsonl",
        "tools.jsonl",
        "trajectory.json",
        "workspace",
    ]
    assert (tmp_path / "run" / "manifest.csv").read_text() == "path,size,sha256,mtime\n"


def test_two_imports_of_a_file_are_byte_identical(tmp_path: Path) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)
    for name in ("a", "b"):
        import_file(source, tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_identity_is_taken_from_the_results_layout(tmp_path: Path) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)
    output = tmp_path / "results" / "trajectories" / "g9" / "brain_os" / "2" / "run"
    assert import_file(source, output).trajectory_id == "g9/brain_os/2"
    assert import_file(source, tmp_path / "run").trajectory_id == "imported/unassigned/1"
    with pytest.raises(InputError, match="not a valid group"):
        import_file(source, tmp_path / "x" / "run", group="../up")


def test_a_folder_in_use_is_never_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)
    (tmp_path / "empty").mkdir()
    import_file(source, tmp_path / "empty")
    before = (tmp_path / "empty" / "run.json").read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        import_file(source, tmp_path / "empty")
    assert (tmp_path / "empty" / "run.json").read_bytes() == before
    with pytest.raises(InputError, match="never overwritten"):
        import_file(source, source)


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importer, "write_json", full)
    out = CliRunner().invoke(import_, [str(source), "--output", str(tmp_path / "run")])
    assert isinstance(out.exception, InputError)
    assert "cannot be imported (No space left on device)" in str(out.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_killed_while_writing_leaves_no_record(tmp_path: Path) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)
    code = (
        "import os, signal\nfrom acpbench.trajectory import importer\n"
        "importer._record = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"importer.import_file({str(source)!r}, {str(tmp_path / 'run')!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert not (tmp_path / "run").exists()
    assert import_file(source, tmp_path / "run").run_status == "completed"


# -- detection by content --


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (CLAUDE, "claude_code_stream"),
        ([{"type": "user", "sessionId": "s", "message": {"content": "x"}}], "claude_code_session"),
        ([{"type": "thread.started", "thread_id": "t"}], "codex_exec"),
        ([{"type": "session_meta", "payload": {"id": "t"}}], "codex_rollout"),
        ([{"type": "text", "sessionID": "ses", "part": {"type": "text", "text": "x"}}], "opencode_run"),
        ([{"type": "read", "t": "2026-01-01T00:00:00Z", "path": "TASK.md"}], "scripted_stream"),
        ([b"Warning: no stdin", b"[info] start", *CLAUDE], "claude_code_stream"),
        ([b"", b"\x1b[0m", *CLAUDE], "claude_code_stream"),
        ([CLAUDE], "claude_code_stream"),  # a list of events, as --output-format json prints
        ([EXPORT], "opencode_export"),
        ([{"schema_version": "ATIF-v1.7"}], "atif"),
    ],
)
def test_the_format_is_found_in_the_content(rows: list, expected: str, tmp_path: Path) -> None:
    assert detect(write(tmp_path / "x", *rows)).source_format == expected


def test_a_pretty_printed_document_is_read_whole(tmp_path: Path) -> None:
    for name, value in (("export", EXPORT), ("events", CLAUDE), ("event", CLAUDE[3])):
        (tmp_path / name).write_text(json.dumps(value, indent=2))
        import_file(tmp_path / name, tmp_path / f"{name}.run")
        assert (tmp_path / f"{name}.run" / "source.json").read_bytes() == (tmp_path / name).read_bytes()
        assert (tmp_path / f"{name}.run" / "stream.jsonl").read_bytes() == b""
    assert load_run(tmp_path / "events.run").run_status == "completed"


def _gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"{}"))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("a.txt", "x")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: p.write_bytes(b"\x00" * 9_000), "begins with blank bytes only"),
        (lambda p: p.write_bytes(b" \n\n"), "is empty"),
        (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
         "is a Git LFS pointer"),
        (_gzip, "is a gzip file"),
        (_zip, "is a zip archive without an Inspect log"),
        (lambda p: p.write_bytes(json.dumps(CLAUDE[0]).encode("utf-16")), "is UTF-16 text"),
        (lambda p: p.write_text("hello\nworld\n"), "is of no known record format: it is not valid JSON"),
        (lambda p: p.write_text('{"a": 1}\n{"b": 2}\n'), "is of no known record format: it is more than one"),
        (lambda p: p.write_text('{"type": "x", "a": 1}\n'), "one JSON object of type 'x'"),
        (lambda p: p.write_text("[1, 2]"), "is of no known record format: one JSON list"),
        (lambda p: p.write_text("7"), "is of no known record format: one JSON int"),
        (lambda p: p.write_text('{"schema_version": "ATIF-v1.2"}'), "schema_version: ATIF-v1.2 is not read"),
        (lambda p: p.write_bytes(os.urandom(5_000)), "is of no known record format"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: os.mkfifo(p), "is not a regular file"),
        (lambda p: None, "does not exist"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_with_its_reason(make: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(InputError) as caught:
        import_file(path, tmp_path / "out" / "run")
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_named_format_is_taken_at_its_word(tmp_path: Path) -> None:
    odd = write(tmp_path / "x", {"type": "future_message_type", "session_id": "s"})
    record = import_file(odd, tmp_path / "a", source_format="claude_code_stream")
    assert record.imported is not None
    assert record.imported.unknown == {"future_message_type": 1}
    assert record.run_status == "incomplete_stream"
    for name, reason in (("atif", "is not an ATIF version"), ("inspect_eval", "not a readable zip archive"),
                         ("of_tomorrow", "is no format; expected auto or claude_code_stream")):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            import_file(odd, tmp_path / "b", source_format=name)
    with pytest.raises(InputError, match="only Inspect logs have samples"):
        import_file(write(tmp_path / "y", *CLAUDE), tmp_path / "b", sample="1")


def test_a_sessions_subagents_come_with_it(tmp_path: Path) -> None:
    line = {"type": "assistant", "sessionId": "s", "timestamp": "2026-01-01T00:00:05Z",
            "message": {"id": "m", "content": [{"type": "text", "text": "main"}]}}  # fmt: skip
    session = write(tmp_path / "s.jsonl", line)
    folder = tmp_path / "s" / "subagents"
    folder.mkdir(parents=True)
    sub = {**line, "agentId": "a7", "timestamp": "2026-01-01T00:00:03Z",
           "message": {"id": "n", "content": [{"type": "text", "text": "sub"}]}}  # fmt: skip
    write(folder / "agent-a7.jsonl", sub)
    write(tmp_path / "elsewhere", {**sub, "agentId": "evil"})
    (folder / "agent-x.jsonl").symlink_to(tmp_path / "elsewhere")
    write(folder / "notes.jsonl", sub)
    record = import_file(session, tmp_path / "run")
    assert record.imported is not None
    assert record.imported.subagent_files == ["agent-a7.jsonl"]
    said = [event.args["text"] for event in load_events(tmp_path / "run") if event.kind == "message"]
    assert said == ["sub", "main"]
    assert (tmp_path / "run" / "subagents" / "agent-a7.jsonl").is_file()


# -- hostile files --


def test_no_event_is_lost_between_hostile_lines(tmp_path: Path) -> None:
    hostile = [
        b"\x00" * 4096,
        b"\xff\xfe\xfd",
        b"{" * 50_000,
        b'{"type":"user","message":{"content":"' + b"[" * 50_000 + b'"}}',
        json.dumps({"type": "user", "message": {"content": "\udcb2 lone \ud83d"}}).encode(),
        b'{"type":"user","message":{"content":"raw \x1b[31m\x00 bytes \xff"}}',
        b'\x1b[2K{"type":"user","message":{"content":"after an escape"}}\r',
        b'{"type":"user","type":"user","message":{"content":"first"},"message":{"content":"repeated key"}}',
        b'{"type":"user","message":{"content":"n"},"n":' + b"9" * 10_000 + b',"x":NaN,"y":-Infinity}',
        b'{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"d","name":"Bash","input":'
        + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}]}}",
        "{\"type\":\"user\",\"message\":{\"content\":\"sep\u2028arated\x85\"}}".encode(),
    ]  # fmt: skip
    rows = [piece for bad in hostile for piece in (bad, CLAUDE[1])]
    source = write(tmp_path / "x.jsonl", CLAUDE[0], *rows)
    with open(source, "ab") as handle:
        handle.write(json.dumps(CLAUDE[3]).encode() + b'\n{"type":"assistant","message":{"id":"m2","con')
    record = import_file(source, tmp_path / "run")
    assert record.imported is not None
    assert (tmp_path / "run" / "stream.jsonl").read_bytes() == source.read_bytes()
    # The NUL line is blank, the line of braces and the last are malformed, the line of no text is text.
    assert record.imported.malformed == 2
    assert "the last line is half-written" in record.imported.problems[-1]
    events = load_events(tmp_path / "run")
    assert sum(event.kind == "read" for event in events) == len(hostile)
    said = [event.args["text"] for event in events if event.kind == "message" and event.name == "user"]
    assert said == [
        "[" * 50_000,
        "\\udcb2 lone \\ud83d",
        "raw \x1b[31m\x00 bytes \\udcff",
        "after an escape",
        "repeated key",
        "n",
        "sep\u2028arated\x85",
    ]
    assert sum(event.kind == "command" for event in events) == 1


PEAK_KIB = r"int(re.search(r'VmHWM:\s+(\d+)', open('/proc/self/status').read())[1])"


def test_a_line_of_100_mb_loses_no_event_and_memory_stays_bounded(tmp_path: Path) -> None:
    source = tmp_path / "big.jsonl"
    with open(source, "wb") as handle:
        handle.write(json.dumps(CLAUDE[0]).encode() + b"\n")
        handle.write(
            b'{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"'
        )
        for _ in range(100):
            handle.write(b"0123456789abcde\\n" * (1024 * 1024 // 17))
        handle.write(b'","is_error":true}]}}\n')
        handle.write(json.dumps(CLAUDE[3]).encode() + b"\n")
    code = (
        "import re\nfrom acpbench.trajectory.importer import import_file\n"
        f"record = import_file({str(source)!r}, {str(tmp_path / 'run')!r})\n"
        "print(record.imported.kept, record.imported.malformed, record.imported.shortened, record.run_status,"
        # Not ru_maxrss: that one remembers the size of the process that started this one.
        f" {PEAK_KIB})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kept, malformed, shortened, status, kib = done.stdout.split()
    assert (kept, malformed, shortened, status) == ("3", "0", "1", "completed")
    assert int(kib) < 256 * 1024
    (result,) = [
        result
        for step in json.loads((tmp_path / "run" / "trajectory.json").read_text())["steps"]
        for result in step.get("observation", {}).get("results", [])
    ]
    assert result["content"].startswith("0123456789abcde\n")
    assert "bytes cut]" in result["content"]
    assert result["extra"]["is_error"] is True


def test_many_large_texts_stay_within_the_budget_of_a_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acpbench.trajectory import bounded

    monkeypatch.setattr(bounded, "MAX_TOTAL_BYTES", 100_000)
    rows = [{"type": "user", "message": {"content": "x" * 50_000}} for _ in range(50)]
    source = write(tmp_path / "x.jsonl", CLAUDE[0], *rows, CLAUDE[3])
    record = import_file(source, tmp_path / "run")
    assert record.imported is not None
    assert record.imported.kept == 52
    assert record.imported.shortened == 47
    assert (tmp_path / "run" / "trajectory.json").stat().st_size < 250_000


# -- the command --


def acp_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "acpbench.cli.main", "import", *arguments], capture_output=True, text=True
    )


def test_the_command_writes_a_record_or_one_line_and_code_2(tmp_path: Path) -> None:
    source = write(tmp_path / "x.jsonl", *CLAUDE)
    done = acp_bench(str(source), "--output", str(tmp_path / "run"), "--group", "g", "--task", "t")
    assert done.returncode == 0
    assert done.stdout == (
        "g/t/1: claude_code_stream, 4 events kept, 0 unknown, 0 malformed; "
        "completed (terminal event success)\n"
    )
    again = acp_bench(str(source), "--output", str(tmp_path / "run"))
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("acp-bench: error: ") and again.stderr.count("\n") == 1
    assert acp_bench(str(source)).returncode == 2


def test_an_error_nobody_foresaw_is_a_refusal_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(importer, "detect", broken)
    out = CliRunner().invoke(
        import_, [str(write(tmp_path / "x", *CLAUDE)), "--output", str(tmp_path / "run")]
    )
    assert isinstance(out.exception, InputError)
    assert str(out.exception).endswith("cannot be imported (RuntimeError: two lines)")


def test_a_record_that_is_still_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "stream.jsonl"
    source.write_text('{"type":"thread.started","thread_id":"t"}\n{"type":"turn.completed","usage":{}}\n')
    write = importer._write

    def slowly(*arguments: Any) -> Any:
        with open(source, "a") as handle:
            handle.write('{"type":"turn.started"}\n')
        return write(*arguments)

    monkeypatch.setattr(importer, "_write", slowly)
    with pytest.raises(InputError, match="changed while it was read"):
        import_file(source, tmp_path / "run")
    assert not (tmp_path / "run").exists() and len(list(tmp_path.iterdir())) == 1

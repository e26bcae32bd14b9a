"""The child, its descendants, its limits, and the recording of its output."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.groups import Limits
from acpbench.harness import launch, recorder
from acpbench.harness.launch import Ending, Launch, run_child
from acpbench.harness.meters import ClaudeMeter, CodexMeter, Meter, OpenCodeMeter
from acpbench.harness.recorder import Recorder, Reserve, Sink
from acpbench.harness.scrub import Scrubber
from acpbench.harness.witness import LogWitness


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "TERMINATE_GRACE_S", 1.0)


def run(
    tmp_path: Path, program: str, *, wall_s: float = 20, meter: Meter | None = None, **limits: Any
) -> Ending:
    """Run a Python program as a child; its files are in ``tmp_path/attempt``."""
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    return run_child(
        Launch([sys.executable, "-c", program], tmp_path, dict(os.environ)),
        attempt,
        limits=Limits(**limits),
        wall_s=wall_s,
        meter=meter or Meter(),
        scrubber=Scrubber(),
        secret_values={},
    )


def alive(process: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return b"Z" not in Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except OSError:
        return False


DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # A daemon: its own session, no parent that is known, deaf to TERM.
        os.close(1)
        open("pid", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists("pid") or not open("pid").read():
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("ends", "wall_s", "watchdog"),
    [("", 20, None), ("os.kill(os.getpid(), 9)", 20, None), ("time.sleep(600)", 1.0, "wall")],
)
def test_a_daemon_that_left_session_and_group_is_ended_too(
    tmp_path: Path, ends: str, wall_s: float, watchdog: str | None
) -> None:
    ending = run(tmp_path, DAEMON + ends, wall_s=wall_s)
    assert ending.watchdog == watchdog
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_fork_bomb_of_generations_is_ended(tmp_path: Path) -> None:
    program = """
import os, time
for generation in range(200):
    if os.fork():
        time.sleep(0.02)
        os._exit(0)
    os.setsid()
    open("pids", "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""
    run(tmp_path, program)
    assert not [line for line in (tmp_path / "pids").read_text().split() if alive(int(line))]


def test_an_agent_that_kills_its_supervisor_is_recorded_as_killed(tmp_path: Path) -> None:
    start = time.monotonic()
    ending = run(
        tmp_path, "import os, time; print('{}', flush=True); os.kill(os.getppid(), 9); time.sleep(600)"
    )
    assert time.monotonic() - start < 15
    assert (ending.signal, ending.exit_code) == (signal.SIGKILL, None)
    assert ending.notes == ["the supervisor was killed"]
    assert (tmp_path / "attempt" / "stream.jsonl").read_bytes() == b"{}\n"


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir()
    ending = run_child(
        Launch(["/no/such/program"], tmp_path, {}),
        tmp_path / "attempt",
        limits=Limits(),
        wall_s=5,
        meter=Meter(),
        scrubber=Scrubber(),
        secret_values={},
    )
    assert ending.failed == "No such file or directory: /no/such/program"


def test_output_is_on_disk_while_the_child_runs(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    program = "import time; print('first', flush=True); time.sleep(3); print('second')"
    thread = threading.Thread(target=run, args=(tmp_path, program))
    thread.start()
    deadline = time.monotonic() + 2.5
    while not (attempt / "stream.jsonl").exists() or (attempt / "stream.jsonl").read_bytes() != b"first\n":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    thread.join()
    rows = (attempt / "stream.times.csv").read_text().splitlines()
    assert rows[0] == "line,t_wall,t_mono_s"
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2"]
    first, second = (float(row.split(",")[2]) for row in rows[1:])
    assert 2.5 < second - first < 5


def test_standard_error_is_kept_apart_and_does_not_block(tmp_path: Path) -> None:
    program = "import sys; sys.stderr.write('e' * 3_000_000); print('{}')"
    assert run(tmp_path, program).exit_code == 0
    assert (tmp_path / "attempt" / "stderr.log").stat().st_size == 3_000_000
    assert (tmp_path / "attempt" / "stream.jsonl").read_bytes() == b"{}\n"


def test_a_tool_at_work_is_no_idleness(tmp_path: Path) -> None:
    attempt, log = tmp_path / "attempt", tmp_path / "tools.jsonl"
    attempt.mkdir()
    log.write_text('{"event": "start", "call_id": "c1"}\n')
    witness = LogWitness(log)

    def at_work() -> bool:
        witness.look()
        return witness.open_calls > 0

    program = "import time; time.sleep(3)"
    row = '{"event": "end", "call_id": "c1"}'
    ends = f"import time; open('tools.jsonl', 'a').write({row!r} + chr(10)); time.sleep(9)"
    common = {"wall_s": 20, "meter": Meter(), "scrubber": Scrubber(), "secret_values": {}}
    command = Launch([sys.executable, "-c", program], tmp_path, dict(os.environ))
    limits = Limits(idle_s=1.5)
    assert run_child(command, attempt, limits=limits, on_look=at_work, **common).watchdog is None
    assert run_child(command, attempt, limits=limits, **common).watchdog == "idle"
    ending = Launch([sys.executable, "-c", ends], tmp_path, dict(os.environ))
    assert run_child(ending, attempt, limits=limits, on_look=at_work, **common).watchdog == "idle"


def test_the_grace_after_a_terminal_event_ends_when_the_agent_goes_on(tmp_path: Path) -> None:
    program = """
import json, time
def say(kind): print(json.dumps({"type": kind, "message": {"id": kind}}), flush=True)
say("result"); time.sleep(0.5); say("assistant"); time.sleep(2.5); say("result"); time.sleep(600)
"""
    start = time.monotonic()
    ending = run(tmp_path, program, meter=ClaudeMeter(), post_result_s=1.5)
    assert (ending.watchdog, ending.terminal_seen) == ("post_result", True)
    assert 4.5 < time.monotonic() - start < 12


# -- recording --


def test_a_long_line_is_written_in_parts_and_no_secret_slips_through_the_cut(tmp_path: Path) -> None:
    secret = "s3cr3t-" + "k" * 33
    read, write = os.pipe()
    scrubber = Scrubber({"KEY": secret})
    copy = Recorder(read, tmp_path / "out", scrubber=scrubber)
    copy.start()
    pieces = [
        b"a" * 1_048_560,
        secret[:11].encode(),
        secret[11:30].encode(),
        secret[30:].encode() + b"b" * 9 + b"\n",
    ]
    for piece in pieces:
        os.write(write, piece) if len(piece) < 60_000 else [
            os.write(write, piece[at : at + 60_000]) for at in range(0, len(piece), 60_000)
        ]
        time.sleep(0.3)
        if piece is pieces[2]:
            assert (tmp_path / "out").stat().st_size > 1_000_000
    os.close(write)
    copy.join()
    assert (tmp_path / "out").read_bytes() == b"a" * 1_048_560 + b"[secret:KEY]" + b"b" * 9 + b"\n"


def test_lines_are_dated_when_they_come_however_slow_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def slow(descriptor: int) -> None:
        waits.append(descriptor)
        time.sleep(0.8)

    monkeypatch.setattr(recorder.os, "fsync", slow)
    read, write = os.pipe()
    copy = Recorder(read, tmp_path / "out", scrubber=Scrubber(), times=tmp_path / "times")
    copy.start()
    sent = []
    for number in range(12):
        sent.append(time.monotonic())
        os.write(write, f"line {number}\n".encode())
        time.sleep(0.1)
    os.close(write)
    copy.join()
    assert copy.error is None and len(waits) >= 3
    rows = (tmp_path / "times").read_text().splitlines()[1:]
    late_s = [float(row.split(",")[2]) - moment for row, moment in zip(rows, sent, strict=True)]
    assert min(late_s) >= -0.001 and max(late_s) < 0.6, late_s
    assert (tmp_path / "out").read_text().splitlines() == [f"line {number}" for number in range(12)]


def test_a_full_disk_is_held_in_memory_and_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 100
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        nonlocal room
        if descriptor != sink._descriptor:
            return write(descriptor, data)
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, bytes(data[:room]))
        room -= written
        return written

    reserve = Reserve(tmp_path / "reserve", 65536)
    sink = Sink(tmp_path / "out", reserve)
    monkeypatch.setattr(recorder.os, "write", limited)
    sink.write(b"x" * 150)
    assert sink.full and not reserve.path.exists()
    assert (tmp_path / "out").read_bytes() == b"x" * 100
    sink.write(b"y" * 10)
    room = 1000
    sink.close()
    assert (tmp_path / "out").read_bytes() == b"x" * 150 + b"y" * 10
    assert sink.lost == 0


def test_what_never_fitted_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(tmp_path / "out")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder.os, "write", full)
    sink.write(b"x" * 70)
    sink.close()
    assert (sink.full, sink.lost) == (True, 70)


def test_output_beyond_its_limit_is_counted_not_kept(tmp_path: Path) -> None:
    read, write = os.pipe()
    copy = Recorder(read, tmp_path / "out", scrubber=Scrubber(), limit_bytes=10)
    copy.start()
    for _ in range(3):
        os.write(write, b"123456789\n")
        time.sleep(0.1)
    os.close(write)
    copy.join()
    assert (tmp_path / "out").read_bytes() == b"123456789\n"
    assert copy.dropped == 20


def test_what_came_last_is_kept_however_slowly_it_is_read(tmp_path: Path) -> None:
    class Slow(Meter):
        def feed(self, row: dict[str, Any]) -> None:
            time.sleep(3.5 if "first" in row else 0)
            super().feed(row)

    program = """
print('{"first": 1}', flush=True)
for number in range(300):
    print('{"more": %d}' % number)
print('{"last": 1}')
"""
    ending = run(tmp_path, program, meter=Slow())
    lines = (tmp_path / "attempt" / "stream.jsonl").read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ('{"first": 1}', '{"last": 1}', 302)
    assert not ending.lost_output and ending.notes == []


def test_a_pipe_that_someone_keeps_writing_to_ends_nevertheless(tmp_path: Path) -> None:
    read, write = os.pipe()
    copy = Recorder(read, tmp_path / "out", scrubber=Scrubber())
    copy.start()
    stop = threading.Event()

    def babble() -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more
            while not stop.is_set():
                os.write(write, b"x" * 1000 + b"\n")

    writer = threading.Thread(target=babble)
    writer.start()
    time.sleep(0.3)
    copy.halt()
    copy.join(20)
    assert not copy.is_alive()
    stop.set()
    writer.join(5)
    os.close(write)


def test_a_recording_that_does_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RECORDING_END_S", 0.3)

    class Stuck(Meter):
        def feed(self, row: dict[str, Any]) -> None:
            time.sleep(6)

    ending = run(tmp_path, "print('{}', flush=True)", meter=Stuck())
    assert ending.lost_output
    assert ending.notes == ["stream.jsonl: recording did not end within 0.3 s"]


# -- counting --


def assistant(
    identity: str, fresh: int, cached: int, output: int, parent: str | None = None
) -> dict[str, Any]:
    usage = {"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": output}
    return {"type": "assistant", "parent_tool_use_id": parent, "message": {"id": identity, "usage": usage}}


def test_claude_counts_a_message_once_and_its_last_usage() -> None:
    meter = ClaudeMeter()
    meter.feed(assistant("m1", 3, 7, 1))
    meter.feed(assistant("m1", 3, 7, 5))
    meter.feed(assistant("m2", 4, 0, 6, parent="t"))
    # m1: 3 + 7 + 5 (its last line); m2: 4 + 6. A sub-agent's answer is no turn of the main agent.
    assert (meter.tokens, meter.turns, meter.terminal) == (25, 1, False)
    meter.feed({"type": "result", "usage": {"input_tokens": 30, "output_tokens": 12}, "total_cost_usd": 0.5})
    assert (meter.tokens, meter.cost_usd, meter.terminal) == (42, 0.5, True)
    meter.feed({"type": "system", "subtype": "task_started", "task_id": "a"})
    assert meter.open_work == 1
    meter.feed(
        {"type": "system", "subtype": "task_updated", "task_id": "a", "patch": {"status": "completed"}}
    )
    assert meter.open_work == 0


def test_codex_usage_is_a_running_total() -> None:
    meter = CodexMeter()
    for total in (100, 250):
        meter.feed({"type": "turn.started"})
        assert not meter.terminal
        meter.feed({"type": "item.completed", "item": {"type": "agent_message", "text": ""}})
        meter.feed({"type": "turn.completed", "usage": {"input_tokens": total, "output_tokens": 10}})
    assert (meter.tokens, meter.turns, meter.terminal) == (260, 2, True)


def test_opencode_sums_its_steps_and_a_stop_beside_a_tool_is_no_end() -> None:
    meter = OpenCodeMeter()
    tokens = {"input": 5, "output": 2, "reasoning": 1, "cache": {"read": 10, "write": 0}}
    step = {"type": "step_finish", "part": {"reason": "stop", "cost": 0.125, "tokens": tokens}}
    meter.feed({"type": "step_start", "part": {}})
    meter.feed({"type": "tool_use", "part": {}})
    meter.feed(step)
    assert not meter.terminal
    meter.feed({"type": "step_start", "part": {}})
    meter.feed(step)
    assert meter.terminal
    # 5 fresh + 10 cached + 2 written, twice.
    assert (meter.tokens, meter.turns, meter.cost_usd) == (34, 2, 0.25)


@pytest.mark.parametrize("meter", [Meter(), ClaudeMeter(), CodexMeter(), OpenCodeMeter()])
def test_a_meter_survives_rows_of_any_shape(meter: Meter) -> None:
    for row in (
        {},
        {"type": None},
        {"type": ["assistant"]},
        {"type": "assistant", "message": "text"},
        {"type": "assistant", "message": {"id": 5, "usage": [1]}},
        {"type": "result", "usage": "x", "total_cost_usd": "free"},
        {"type": "turn.completed", "usage": {"input_tokens": -1}},
        {"type": "step_finish", "part": {"tokens": {"cache": 3}, "cost": float("nan")}},
        {"type": "system", "subtype": "task_updated", "patch": "x"},
    ):
        meter.feed(row)
    assert meter.tokens in (None, 0)
    assert meter.cost_usd is None


# -- the witness of the tool log --


@pytest.mark.parametrize("edit", ["append", "change", "truncate", "delete", "replace", "link"])
def test_an_edited_log_is_put_back(tmp_path: Path, edit: str) -> None:
    log = tmp_path / "tools.jsonl"
    log.write_bytes(b'{"seq": 1}\n{"seq": 2}\n{"half"')
    witness = LogWitness(log)
    witness.look()
    if edit == "append":
        log.write_bytes(b'{"seq": 1}\n{"seq": 2}\n{"half": 0}\n')
    elif edit == "change":
        log.write_bytes(b'{"seq": 1}\n{"seq": 9}\n')
    elif edit == "truncate":
        log.write_bytes(b"")
    elif edit == "delete":
        log.unlink()
    elif edit == "replace":
        (tmp_path / "other").write_bytes(b"{}\n" * 30)
        (tmp_path / "other").replace(log)
    else:
        log.unlink()
        log.symlink_to("/etc/passwd")
    witness.look()
    found = witness.settle()
    if edit == "append":
        assert found is None
        assert log.read_bytes() == b'{"seq": 1}\n{"seq": 2}\n{"half": 0}\n'
    else:
        assert found == "tools.jsonl was edited during the run; the 2 lines witnessed are restored"
        assert not log.is_symlink()
        assert log.read_bytes() == b'{"seq": 1}\n{"seq": 2}\n'

"""Inspect logs: one sample is one trajectory, read within limits that the archive cannot lift."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory import inspect_eval
from acpbench.trajectory.inspect_eval import parse_eval
from acpbench.trajectory.status import stream_status

SPEC = {"model": "openai/m", "packages": {"inspect_ai": "0.3.1"}, "created": "2026-01-01T00:00:00+02:00"}


def event(kind: str, second: int = 1, **fields: Any) -> dict:
    return {"event": kind, "timestamp": f"2026-01-01T00:00:{second:02d}+02:00", **fields}


def model_event(content: Any, usage: dict | None = None, stop: str = "stop", **message: Any) -> dict:
    said = {"role": "assistant", "content": content, **message}
    return event(
        "model",
        2,
        input=[{"role": "system", "content": "rules"}, {"role": "user", "content": "attachment://a1"}],
        output={"choices": [{"message": said, "stop_reason": stop}], "usage": usage},
    )


CALL = {"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}}
SAMPLE: dict[str, Any] = {
    "id": 1, "epoch": 1, "attachments": {"a1": "do it"}, "scores": {"match": {"value": "C"}},
    "events": [
        event("sample_init", sample={}),
        model_event([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "I look"}],
                    {"input_tokens": 5, "input_tokens_cache_read": 2, "output_tokens": 3}, tool_calls=[CALL]),
        event("tool", 3, id="c1", function="bash", arguments={"cmd": "ls"}, result="x",
              error={"type": "timeout", "message": "too slow"}),
        model_event("done", {"input_tokens": 6, "output_tokens": 1}),
        event("score", 4, score={"value": "C"}),
        event("of_tomorrow", 5),
    ],
}  # fmt: skip


def archive(path: Path, samples: dict[str, Any], header: dict | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("_journal/start.json", json.dumps({"eval": SPEC}))
        for name, value in samples.items():
            target.writestr(f"samples/{name}.json", value if isinstance(value, str) else json.dumps(value))
        if header is not None:
            target.writestr("header.json", json.dumps({"eval": SPEC, **header}))
    return path


def test_a_sample(tmp_path: Path) -> None:
    typed = parse_eval(archive(tmp_path / "x.eval", {"1_epoch_1": SAMPLE}, {"status": "success"}))
    assert [e.kind for e in typed.events] == [
        "session",
        "notice",
        "user_message",
        "reasoning",
        "agent_message",
        "tool_call",
        "usage",
        "tool_result",
        "agent_message",
        "usage",
        "notice",
        "unknown",
    ]
    assert typed.events[2].text == "do it"
    assert (typed.events[7].content, typed.events[7].is_error) == ("too slow", True)
    assert typed.events[7].t == "2025-12-31T22:00:03.000000Z"
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 13, "cached_tokens": 2, "output_tokens": 4}
    assert (typed.model, typed.harness_version) == ("openai/m", "0.3.1")
    assert typed.counts.unknown == {"of_tomorrow": 1}
    assert typed.counts.folded == {"sample_init": 1}
    assert stream_status(typed)[0] == "completed"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"limit": {"type": "time", "limit": 5}}, "timeout"),
        ({"limit": {"type": "token", "limit": 5}}, "budget"),
        ({"limit": {"type": "operator"}}, "killed"),
        ({"error": {"message": "docker died"}}, "infra_error"),
        ({"events": [model_event("no", stop="content_filter")]}, "refused"),
    ],
)
def test_how_a_sample_ends(changes: dict, status: str, tmp_path: Path) -> None:
    log = archive(tmp_path / "x.eval", {"1_epoch_1": SAMPLE | changes}, {"status": "success"})
    assert stream_status(parse_eval(log))[0] == status


def test_a_log_that_died_still_has_its_samples(tmp_path: Path) -> None:
    log = archive(tmp_path / "x.eval", {"1_epoch_1": SAMPLE})
    assert stream_status(parse_eval(log))[0] == "completed"
    unscored = {key: value for key, value in SAMPLE.items() if key != "scores"}
    log = archive(tmp_path / "y.eval", {"1_epoch_1": unscored})
    assert stream_status(parse_eval(log))[0] == "incomplete_stream"


def test_a_log_without_events_has_its_messages(tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "scores": {}, "messages": [
        {"role": "user", "content": "do it"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"}, {"role": "odd"}]}  # fmt: skip
    typed = parse_eval(archive(tmp_path / "x.eval", {"1_epoch_1": sample}))
    assert [e.kind for e in typed.events] == [
        "session", "user_message", "tool_call", "tool_result", "unknown"]  # fmt: skip


def test_which_sample_must_be_said(tmp_path: Path) -> None:
    log = archive(tmp_path / "x.eval", {"1_epoch_1": SAMPLE, "1_epoch_2": SAMPLE, "b_epoch_1": SAMPLE})
    with pytest.raises(InputError, match=r"holds 3 samples .* --sample: 1:1, 1:2, b:1"):
        parse_eval(log)
    with pytest.raises(InputError, match="2 epochs of sample '1'"):
        parse_eval(log, "1")
    with pytest.raises(InputError, match="no sample '7'"):
        parse_eval(log, "7")
    assert parse_eval(log, "b").counts.lines == parse_eval(log, "1:2").counts.lines == 6


def test_a_zip_bomb_is_refused_by_what_it_unpacks_to(tmp_path: Path) -> None:
    bomb = '{"id": 1, "events": [], "x": "' + "0" * 20_000_000 + '"}'
    log = archive(tmp_path / "x.eval", {"1_epoch_1": bomb})
    assert log.stat().st_size < 50_000
    with pytest.raises(InputError, match=r"1_epoch_1.json unpacks to more than \d+ bytes"):
        parse_eval(log)


def test_sizes_that_the_archive_declares_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_eval, "MAX_MEMBER_BYTES", 1_000)
    log = archive(tmp_path / "x.eval", {"1_epoch_1": {"id": 1, "pad": list(range(1_000))}})
    with pytest.raises(InputError, match="unpacks to more than 1000 bytes"):
        parse_eval(log)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("[" * 100_000, "JSON nested too deeply"), ("{", "is not valid JSON"), ("[]", "is not a JSON object")],
)
def test_a_broken_sample_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        parse_eval(archive(tmp_path / "x.eval", {"1_epoch_1": content}))


def test_a_torn_archive_and_one_without_samples_are_refused(tmp_path: Path) -> None:
    log = archive(tmp_path / "x.eval", {"1_epoch_1": SAMPLE})
    (tmp_path / "torn.eval").write_bytes(log.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a readable zip archive"):
        parse_eval(tmp_path / "torn.eval")
    with pytest.raises(InputError, match="holds no sample"):
        parse_eval(archive(tmp_path / "y.eval", {}))

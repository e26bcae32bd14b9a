"""Steps of long loops reach a listener, in this thread, until it has had enough."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from acpbench.core.progress import listening, track


def test_without_a_listener_a_loop_is_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2], label="x")) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(track([1, 2], label="fitting")) == [1, 2]
    assert "fitting" in screen.getvalue()


def test_a_listener_hears_each_step_and_the_end() -> None:
    heard: list[object] = []
    with listening(lambda *step: heard.append(step)):
        assert list(track("ab", label="letters")) == ["a", "b"]
        list(track(iter("a"), label="unknown"))
    assert heard == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2), ("unknown", 0, None),
                     ("unknown", 1, None)]  # fmt: skip
    list(track("ab", label="after"))
    assert len(heard) == 5


def test_a_loop_inside_a_loop_is_checked_but_not_told() -> None:
    heard: list[str] = []
    checks: list[int] = []
    with listening(lambda label, done, total: heard.append(label), lambda: checks.append(1)):
        for _ in track(range(2), label="outer"):
            list(track(range(3), label="inner"))
        list(track(range(1), label="next"))
    assert heard == ["outer", "outer", "outer", "next", "next"]
    assert len(checks) == 2 + 1 + 2 * 4 + 2


def test_a_loop_left_early_gives_its_place_back() -> None:
    heard: list[str] = []
    with listening(lambda label, done, total: heard.append(label)):
        for _ in track(range(5), label="left"):
            break
        list(track(range(1), label="next"))
    assert heard == ["left", "next", "next"]


def test_a_check_that_raises_stops_the_work() -> None:
    class Stop(BaseException):
        pass

    done: list[int] = []

    def check() -> None:
        if len(done) == 2:
            raise Stop

    with pytest.raises(Stop), listening(lambda *step: None, check):
        for item in track(range(9), label="x"):
            done.append(item)
    assert done == [0, 1]


def test_another_thread_is_not_heard() -> None:
    heard: list[object] = []
    with listening(lambda *step: heard.append(step)):
        thread = threading.Thread(target=lambda: list(track(range(3), label="elsewhere")))
        thread.start()
        thread.join()
    assert heard == []

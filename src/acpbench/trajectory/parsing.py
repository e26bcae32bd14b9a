"""From lines to a typed trajectory: what all parsers of stream formats share.

A parser of a family is a class with ``feed(row)`` and ``finish()`` over a :class:`Collector`; it never
raises on content. The collector keeps order, time, source line and counts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from acpbench.trajectory.bounded import MAX_TOTAL_BYTES, TIGHT_TEXT_CHARS, Bounds, moment
from acpbench.trajectory.jsonl import UNTERMINATED, Line, decode_line, shorten
from acpbench.trajectory.typed import (
    MALFORMED,
    STREAM_FORMATS,
    Counts,
    HarnessName,
    Notice,
    Totals,
    TypedTrajectory,
    Unknown,
)

MAX_EVENTS = 200_000
MAX_PROBLEMS = 50
MAX_KINDS = 200
RAW_CHARS = 4_000
NOTICE_CHARS = 8_000

_PARSERS = {
    "claude_code_stream": "acpbench.trajectory.claude_code:ClaudeStream",
    "claude_code_session": "acpbench.trajectory.claude_code:ClaudeSession",
    "codex_exec": "acpbench.trajectory.codex:CodexExec",
    "codex_rollout": "acpbench.trajectory.codex_rollout:CodexRollout",
    "opencode_run": "acpbench.trajectory.opencode:OpenCodeRun",
    "scripted_stream": "acpbench.trajectory.scripted_stream:ScriptedStream",
}
_TYPE = re.compile(r'"(?:type|event)"\s*:\s*"([A-Za-z0-9_./-]{1,60})"')


class Parser(Protocol):
    """What a family's parser offers."""

    def __init__(self, collector: Collector) -> None: ...

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one JSON object."""

    def finish(self) -> None:
        """Set totals, cost and evidence."""


class Collector:
    """Events, counts and facts of one trajectory while it is parsed.

    A parser reads ``time`` (the entry's own moment, unless a receipt time is known) through :meth:`at`.
    """

    def __init__(self, source_format: str, harness: HarnessName) -> None:
        self.typed = TypedTrajectory(source_format=source_format, harness=harness)
        self.events: list[Any] = []
        self.bounds = Bounds()
        self.counts = Counts()
        self.line: int | None = None
        self.agent: str | None = None
        self._t: str | None = None
        self._receipt: str | None = None

    # -- where the parser is --

    def enter(self, line: int | None, receipt_s: float | None = None) -> None:
        """Start one entry of the source."""
        self.counts.lines += 1
        self.line, self.agent = line, None
        self._receipt = None if receipt_s is None else moment(receipt_s)
        self._t = self._receipt

    def at(self, value: Any, *, trusted: bool = False) -> None:
        """The entry's own time; a receipt time goes before it unless the clock is the benchmark's own."""
        if self._receipt is None or trusted:
            self._t = moment(value) or self._receipt

    # -- what it found --

    def add(self, model: type[Any], /, **fields: Any) -> Any:
        """Add one event at the current place."""
        event = model(
            seq=len(self.events),
            t=fields.pop("t", None) or self._t,
            line=self.line,
            agent=fields.pop("agent", self.agent),
            **fields,
        )
        if len(self.events) >= MAX_EVENTS:
            self.counts.dropped += 1
            return event
        self.events.append(event)
        return event

    def retract(self, event: Any) -> None:
        """Take back an event that a later entry carries in full."""
        if event.seq < len(self.events) and self.events[event.seq] is event:
            self.events[event.seq] = None

    def text(self, value: Any, limit: int | None = None) -> str:
        """Bounded text."""
        return self.bounds.text(value) if limit is None else self.bounds.text(value, limit)

    def notice(self, level: str, text: Any = "") -> None:
        """Add a notice."""
        self.add(Notice, level=self.text(level, 100), text=self.text(text, NOTICE_CHARS))

    def unknown(self, raw_kind: Any, raw: Any) -> None:
        """Keep what has no name, and count it."""
        kind = self.text(raw_kind if isinstance(raw_kind, str) else repr(raw_kind)[:100], 100)
        _count(self.counts.unknown, kind)
        self.add(Unknown, raw_kind=kind, raw=self.bounds.value(raw, RAW_CHARS))

    def malformed(self, why: str, raw: Any) -> None:
        """Keep an entry that holds no readable event, and count it."""
        self.counts.malformed += 1
        self.problem(f"{self.where()}{why}")
        self.add(Unknown, raw_kind=MALFORMED, raw=self.bounds.value(raw, RAW_CHARS))

    def fold(self, raw_kind: str) -> None:
        """Count an entry whose content another event carries."""
        _count(self.counts.folded, raw_kind)

    def problem(self, text: str) -> None:
        """Note something odd, once, up to a number."""
        if len(self.typed.problems) < MAX_PROBLEMS and text not in self.typed.problems:
            self.typed.problems.append(self.text(text, 400))

    def where(self) -> str:
        """The place in the source, for a problem's text."""
        return "" if self.line is None else f"line {self.line}: "

    def total(self, totals: Totals | None, cost_usd: float | None = None, source: str | None = None) -> None:
        """Set the trajectory's totals; a cost comes with its source."""
        self.typed.totals = totals if totals is not None and totals.known() else None
        self.typed.cost_usd = cost_usd
        self.typed.cost_source = source if cost_usd is not None else None

    def done(self, *, by_time: bool = False) -> TypedTrajectory:
        """The finished trajectory."""
        events = [event for event in self.events if event is not None]
        if by_time and all(event.t is not None for event in events):
            events.sort(key=lambda event: event.t)
        for seq, event in enumerate(events):
            event.seq = seq
            self.counts.events[event.kind] = self.counts.events.get(event.kind, 0) + 1
        self.counts.shortened = self.bounds.shortened
        if self.bounds.tight:
            self.problem(
                f"more than {MAX_TOTAL_BYTES} bytes of text: what came after is kept to "
                f"{TIGHT_TEXT_CHARS} characters a text"
            )
        if self.counts.dropped:
            self.problem(f"{self.counts.dropped} events beyond {MAX_EVENTS} were counted, not kept")
        self.typed.events, self.typed.counts = events, self.counts
        return self.typed


def _count(counts: dict[str, int], kind: str) -> None:
    if kind not in counts and len(counts) >= MAX_KINDS:
        kind = "(other)"
    counts[kind] = counts.get(kind, 0) + 1


def add_numbers(left: int | None, right: int | None) -> int | None:
    """Sum of what is known; None when neither is."""
    return right if left is None else left if right is None else left + right


def summed(parts: Iterable[Totals]) -> Totals | None:
    """Sum of totals, field by field; None for no parts."""
    total: Totals | None = None
    for part in parts:
        total = Totals(
            **{
                name: add_numbers(getattr(total, name, None), getattr(part, name))
                for name in Totals.model_fields
            }
        )
    return total


class RunningTotal:
    """A total that a source repeats as it grows. When it has shrunk it began anew: the one before counts too.

    ``value``: all that is known by now. ``restarts``: how often it began anew.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._before: Totals | None = None
        self._last: Totals | None = None

    @property
    def value(self) -> Totals | None:
        return summed(filter(None, (self._before, self._last)))

    def update(self, total: Totals) -> None:
        """Take the newest total."""
        last = self._last
        if last is not None and _tokens(total) < _tokens(last):
            self.begin_anew()
            self.restarts += 1
        self._last = total

    def begin_anew(self) -> None:
        """What comes next does not include what came before."""
        self._before, self._last = self.value, None


def _tokens(totals: Totals) -> int:
    return (totals.input_tokens or 0) + (totals.output_tokens or 0)


def harness_of(source_format: str) -> HarnessName:
    """The harness whose format it is."""
    head = source_format.split("_", 1)[0]
    return {"claude": "claude_code"}.get(head, head)  # type: ignore[return-value]


def make_parser(source_format: str) -> tuple[Collector, Parser]:
    """A collector and the parser of a stream format. Raises ``ValueError`` for another name."""
    if source_format not in _PARSERS:
        raise ValueError(f"{source_format!r} is no stream format; expected {', '.join(STREAM_FORMATS)}")
    module, _, name = _PARSERS[source_format].partition(":")
    collector = Collector(source_format, harness_of(source_format))
    return collector, getattr(importlib.import_module(module), name)(collector)


def parse_sources(
    source_format: str,
    sources: Sequence[Iterable[bytes | Line]],
    times: Sequence[float | None] | None = None,
) -> TypedTrajectory:
    """One trajectory of several sources (a session and its sub-agents' files), in time order.

    Args:
        source_format: a stream format.
        sources: lines of each file.
        times: receipt times of the lines of the first.

    Raises:
        ValueError: no such format.
    """
    collector, parser = make_parser(source_format)
    for index, lines in enumerate(sources):
        for position, item in enumerate(lines):
            line = _line(item, position)
            given = times if index == 0 else None
            receipt = given[position] if given is not None and position < len(given) else None
            _feed_line(collector, parser, line, receipt)
    parser.finish()
    return collector.done(by_time=len(sources) > 1)


def _line(item: bytes | Line, position: int) -> Line:
    if isinstance(item, Line):
        return item
    data, problem = shorten(item[:-1] if item.endswith(b"\n") else item)
    return Line(position + 1, data, problem)


def _feed_line(collector: Collector, parser: Parser, line: Line, receipt_s: float | None) -> None:
    if not line.data.strip(b"\x00 \t\r\n"):
        return
    rows = decode_line(line.data)
    if not (rows.objects or rows.text is not None or rows.malformed):
        return
    collector.enter(line.number, receipt_s)
    for note in rows.notes:
        collector.problem(f"{collector.where()}{note}")
    if line.problem and line.problem != UNTERMINATED:
        collector.bounds.shortened += 1
        collector.problem(f"{collector.where()}{line.problem}")
    for row in rows.objects:
        feed_row(collector, parser, row)
    if rows.text is not None:
        collector.notice("text", rows.text)
    elif rows.malformed:
        why = rows.malformed
        if line.problem == UNTERMINATED and why.startswith("does not parse"):
            why = "the last line is half-written"
        elif line.problem and (kind := _TYPE.search(line.data[:2_000].decode("utf-8", "replace"))):
            why = f"{why} (an over-long line of type {kind[1]})"
        collector.malformed(why, line.data.decode("utf-8", "surrogateescape"))


def feed_row(collector: Collector, parser: Parser, row: dict[str, Any]) -> None:
    """Give one object to a parser; whatever it cannot take is kept as unknown."""
    before = len(collector.events)
    try:
        parser.feed(row)
    except Exception as error:  # content of a shape no parser foresaw must not lose the other events
        del collector.events[before:]
        collector.problem(f"{collector.where()}cannot be read ({type(error).__name__})")
        collector.unknown(row.get("type") or row.get("event") or "(no type)", row)

"""Inspect AI ``.eval`` logs: a zip of a journal and one JSON file a sample. One sample is one trajectory.

``header.json`` is written only when the evaluation ends; without it ``_journal/start.json`` names the model,
and a sample that was written is whole. Nothing is unpacked to disk, and every member is read up to a limit
that does not trust the sizes that the archive declares.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.trajectory.bounded import MAX_TEXT_CHARS, items, mapping, whole, words
from acpbench.trajectory.claude_messages import block_text
from acpbench.trajectory.jsonl import decode_document
from acpbench.trajectory.parsing import Collector, add_numbers, summed
from acpbench.trajectory.typed import (
    AgentMessage,
    Reasoning,
    SessionEvent,
    ToolCall,
    ToolResult,
    Totals,
    TypedTrajectory,
    UsageEvent,
    UserMessage,
)

MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 256 * 1024 * 1024
MAX_RATIO = 300
"""A member that unpacks to more than this many times its packed size (and over 1 MiB) is refused."""
_SAMPLE = re.compile(r"samples/(.+)_epoch_(\d+)\.json")
_ATTACHMENT = "attachment://"
_FOLDED = {
    "anchor", "branch", "checkpoint", "compaction", "logger", "sample_init", "span_begin", "span_end",
    "state", "step", "store", "subtask",
}  # fmt: skip
_NOTICES = (
    "approval",
    "error",
    "info",
    "input",
    "interrupt",
    "sample_limit",
    "sandbox",
    "score",
    "score_edit",
)


def looks_like_eval(path: str | Path) -> bool:
    """Whether a zip archive has the members of an Inspect log."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:MAX_MEMBERS]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    return any(name.startswith(("_journal/", "samples/")) or name == "header.json" for name in names)


class EvalLog:
    """An open ``.eval`` archive.

    Raises:
        InputError: it is no readable zip archive, or holds too many members.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._archive = zipfile.ZipFile(self.path)
            names = self._archive.namelist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise InputError(f"is not a readable zip archive ({error})", file=path) from None
        if len(names) > MAX_MEMBERS:
            raise InputError(f"holds {len(names)} members; at most {MAX_MEMBERS} are read", file=path)
        self.names = set(names)
        self.samples = {
            f"{match[1]}:{match[2]}": name for name in names if (match := _SAMPLE.fullmatch(name))
        }

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()

    def read(self, name: str) -> Any:
        """One JSON member, read within limits.

        Raises:
            InputError: it is encrypted, packed by an unknown method, broken, too large or not JSON.
        """
        info = self._archive.getinfo(name)
        limit = min(MAX_MEMBER_BYTES, max(1024 * 1024, info.compress_size * MAX_RATIO))
        try:
            with self._archive.open(info) as handle:
                data = handle.read(limit + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
            raise InputError(f"{name} cannot be unpacked ({error})", file=self.path) from None
        if len(data) > limit:
            raise InputError(
                f"{name} unpacks to more than {limit} bytes ({info.compress_size} packed)", file=self.path
            )
        value, problem = decode_document(data)
        if problem:
            raise InputError(f"{name} {problem}", file=self.path)
        return value

    def choose(self, sample: str | None) -> str:
        """The member of one sample: the only one, or the one named ``ID`` or ``ID:EPOCH``.

        Raises:
            InputError: there is none, or it is not clear which.
        """
        if not self.samples:
            raise InputError("holds no sample (the evaluation wrote none before it stopped)", file=self.path)
        shown = ", ".join(sorted(self.samples)[:20]) + (", ..." if len(self.samples) > 20 else "")
        if sample is None:
            if len(self.samples) > 1:
                raise InputError(
                    f"holds {len(self.samples)} samples and a record is one trajectory; "
                    f"choose one with --sample: {shown}",
                    file=self.path,
                )
            return next(iter(self.samples.values()))
        named = [name for key, name in self.samples.items() if sample in (key, key.rsplit(":", 1)[0])]
        if len(named) != 1:
            reason = "no sample" if not named else f"{len(named)} epochs of sample"
            raise InputError(f"holds {reason} {sample[:80]!r}; there are {shown}", file=self.path)
        return named[0]


def inspect_usage(usage: Any) -> Totals | None:
    """Tokens of an Inspect usage object: all input is fresh, cache-read and cache-written input together."""
    found = mapping(usage)
    read = whole(found.get("input_tokens_cache_read"))
    total = add_numbers(
        add_numbers(whole(found.get("input_tokens")), read), whole(found.get("input_tokens_cache_write"))
    )
    totals = Totals(
        input_tokens=total,
        cached_tokens=read,
        output_tokens=whole(found.get("output_tokens")),
        reasoning_tokens=whole(found.get("reasoning_tokens")),
    )
    return totals if totals.known() else None


def parse_eval(path: str | Path, sample: str | None = None) -> TypedTrajectory:
    """The typed trajectory of one sample of an ``.eval`` log.

    Raises:
        InputError: see :class:`EvalLog`.
    """
    log = EvalLog(path)
    try:
        member = log.choose(sample)
        header: dict[str, Any] = {}
        for name in ("header.json", "_journal/start.json"):
            if name in log.names:
                header = mapping(log.read(name))
                break
        document = log.read(member)
        if not isinstance(document, dict):
            raise InputError(f"{member} is not a JSON object", file=path)
        finished = "header.json" in log.names
    finally:
        log.close()
    status = words(header.get("status")) or ("started" if not finished else None)
    return parse_sample(document, mapping(header.get("eval")), status)


class _Sample:
    def __init__(self, collector: Collector, document: dict[str, Any]) -> None:
        self.out = collector
        self.attachments = mapping(document.get("attachments"))
        self.asked: set[str] = set()
        self.heard: set[str] = set()
        self.stop_reason: str | None = None

    def text(self, content: Any) -> str:
        """Text of message content, attachments resolved; many references to a large one take no more room
        than the text that is kept."""
        if not isinstance(content, list):
            return self.out.text(self._resolved(block_text(content)))
        parts: list[str] = []
        room = 2 * MAX_TEXT_CHARS
        for place, block in enumerate(content):
            if isinstance(block, dict) and block.get("type") == "reasoning":
                continue
            if room <= 0:
                self.out.bounds.shortened += 1
                parts.append(f"[{len(content) - place} blocks left out]")
                break
            text = self._resolved(block_text([block]))
            self.out.bounds.shortened += len(text) > room
            parts.append(text[:room])
            room -= len(text)
        return self.out.text("\n".join(parts))

    def _resolved(self, text: str) -> str:
        if text.startswith(_ATTACHMENT):
            found = self.attachments.get(text.removeprefix(_ATTACHMENT))
            return found if isinstance(found, str) else text
        return text

    def heard_once(self, message: Any) -> None:
        """A message of the model's input, the first time it is part of one."""
        found = mapping(message)
        role = found.get("role")
        if role not in ("system", "user"):
            return
        # Told apart before a text is made of it: each call of the model sends the conversation again.
        key = str(found.get("id") or f"{role} {hash(repr(found.get('content')))}")
        if key in self.heard:
            return
        self.heard.add(key)
        text = self.text(found.get("content"))
        if role == "user":
            self.out.add(UserMessage, text=text)
        else:
            self.out.notice("system", text)

    def event(self, event: dict[str, Any]) -> None:
        """One entry of ``events``."""
        kind = event.get("event")
        if kind == "model":
            self._model(event)
        elif kind == "tool":
            self._tool(event)
        elif kind in _FOLDED:
            self.out.fold(str(kind))
        elif kind in _NOTICES:
            body = {key: event[key] for key in event if key not in ("event", "timestamp", "span_id", "uuid")}
            self.out.notice(str(kind), json.dumps(self.out.bounds.value(body), ensure_ascii=False))
        else:
            self.out.unknown(kind if isinstance(kind, str) else "(no event)", event)

    def _model(self, event: dict[str, Any]) -> None:
        for message in items(event.get("input")):
            self.heard_once(message)
        output = mapping(event.get("output"))
        for choice in items(output.get("choices"))[:1]:
            self.stop_reason = words(mapping(choice).get("stop_reason"))
            self.said(mapping(mapping(choice).get("message")))
        used = inspect_usage(output.get("usage"))
        if used is not None:
            self.out.add(UsageEvent, **used.model_dump())
        if event.get("error"):
            self.out.notice("api_error", event["error"])

    def said(self, message: dict[str, Any]) -> None:
        """One message of the assistant."""
        identity = words(message.get("id"))
        content = message.get("content")
        for block in items(content):
            if isinstance(block, dict) and block.get("type") == "reasoning":
                text = self.out.text(block.get("reasoning"))
                self.out.add(Reasoning, message_id=identity, text=text)
        text = self.text(content)
        if text or not message.get("tool_calls"):
            self.out.add(AgentMessage, message_id=identity, text=text)
        for call in items(message.get("tool_calls")):
            if isinstance(call, dict):
                self._call(call, identity)

    def _call(self, call: dict[str, Any], identity: str | None) -> None:
        call_id = self.out.text(call.get("id") or f"call {self.out.line}", 300)
        if call_id in self.asked:
            return
        self.asked.add(call_id)
        self.out.add(
            ToolCall,
            call_id=call_id,
            name=self.out.text(call.get("function") or "(no name)", 300),
            arguments=self.out.bounds.mapping(call.get("arguments")),
            message_id=identity,
        )

    def _tool(self, event: dict[str, Any]) -> None:
        self._call(event, None)
        error = event.get("error")
        result = event.get("result")
        content = mapping(error).get("message") or error if error else result
        self.out.add(
            ToolResult,
            call_id=self.out.text(event.get("id") or f"call {self.out.line}", 300),
            content=self.text(content if isinstance(content, (str, list)) else json.dumps(content)),
            is_error=bool(error) or event.get("failed") is True,
        )


def parse_sample(document: dict[str, Any], spec: dict[str, Any], log_status: str | None) -> TypedTrajectory:
    """The typed trajectory of one sample; ``line`` is the entry's index in ``events`` from 1.

    Args:
        document: the sample.
        spec: ``eval`` of the log's header or journal.
        log_status: ``success``, ``error``, ``cancelled`` or ``started``.
    """
    collector = Collector("inspect_eval", "inspect")
    typed = collector.typed
    typed.agent_name = "inspect_ai"
    typed.model = words(spec.get("model"))
    typed.harness_version = words(mapping(spec.get("packages")).get("inspect_ai"))
    typed.session_id = words(document.get("uuid")) or f"{document.get('id')}:{document.get('epoch')}"
    sample = _Sample(collector, document)
    events = items(document.get("events"))
    collector.at(mapping(events[0]).get("timestamp") if events else spec.get("created"))
    collector.add(
        SessionEvent, session_id=typed.session_id, model=typed.model, harness_version=typed.harness_version
    )
    for number, event in enumerate(events, start=1):
        collector.enter(number)
        found = mapping(event)
        collector.at(found.get("timestamp"))
        try:
            sample.event(found)
        except Exception as error:  # one odd entry must not lose the others
            collector.problem(f"event {number}: cannot be read ({type(error).__name__})")
            collector.unknown(found.get("event") or "(no event)", event)
    if not events:
        _from_messages(collector, sample, document)
    by_model = [inspect_usage(used) for used in mapping(document.get("model_usage")).values()]
    spent = [inspect_usage(mapping(mapping(e).get("output")).get("usage")) for e in events]
    collector.total(summed(filter(None, by_model)) or summed(filter(None, spent)))
    error = document.get("error")
    typed.evidence |= {
        "error": collector.text(mapping(error).get("message") or str(error), 2_000) if error else None,
        "limit": words(mapping(document.get("limit")).get("type")),
        "stop_reason": sample.stop_reason,
        "log_status": log_status,
        "n_acts": sum(isinstance(event, (AgentMessage, ToolCall, ToolResult)) for event in collector.events),
        "sample_complete": document.get("scores") is not None or document.get("completed") is True,
    }
    return collector.done()


def _from_messages(collector: Collector, sample: _Sample, document: dict[str, Any]) -> None:
    """A log written without events still has the messages."""
    for number, message in enumerate(items(document.get("messages")), start=1):
        collector.enter(number)
        found = mapping(message)
        if found.get("role") == "assistant":
            sample.said(found)
        elif found.get("role") == "tool":
            collector.add(
                ToolResult,
                call_id=collector.text(found.get("tool_call_id"), 300),
                content=sample.text(found.get("content")),
                is_error=bool(found.get("error")),
            )
        elif found.get("role") in ("system", "user"):
            sample.heard_once(found)
        else:
            collector.unknown(f"message/{found.get('role')}", message)

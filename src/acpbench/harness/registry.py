"""The typed registry of pathology tools, and the witnessed call.

Each tool is one function on typed arguments with a typed result. Whatever serves it (command line, MCP, Python),
the call is logged here, outside the agent's reach: arguments, inputs with hashes, start, end, outcome, outputs
with hashes. A call cut short by the end of its process keeps its start.
"""

from __future__ import annotations

import difflib
import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes, sha256_file, sha256_json
from acpbench.core.progress import Step, listening
from acpbench.harness.call_files import CallFiles
from acpbench.harness.call_log import append_row
from acpbench.harness.context import RunContext
from acpbench.harness.tool_base import Tool, ToolArgs, ToolOutcome, ToolResult
from acpbench.harness.tool_table import all_tools
from acpbench.trajectory.record import iso_time

__all__ = ["TOOLS", "Tool", "ToolArgs", "ToolOutcome", "ToolResult", "answer_of", "call_tool"]

TOOLS: dict[str, Tool] = all_tools()

MAX_ARGUMENT_BYTES = 256 * 1024
MAX_ERROR_CHARS = 2000
MAX_NAME_CHARS = 128
MAX_STEP_CHARS = 128
MAX_LISTED = 12
ANSWER = ("call_id", "exit_status", "error", "result", "outputs", "cache")
"""What an agent is told of a call, whatever serves it."""


class CallCancelled(BaseException):
    """Whoever asked for a call no longer wants it.

    Not an ``Exception``: no handler for failing tiles or files may take it for one of those.
    """


def registry_document() -> dict[str, Any]:
    """The registry as agents see it (``registry.json``)."""
    return {
        "schema": "acp-registry/0.2",
        "tools": [
            {
                "id": tool.id,
                "role": tool.role,
                "read_only": tool.read_only,
                "description": tool.description,
                "args_schema": tool.args_model().model_json_schema(),
                "result_schema": tool.result_model().model_json_schema(mode="serialization"),
            }
            for tool in TOOLS.values()
        ],
    }


def registry_digest() -> str:
    """Hash of the registry document."""
    return sha256_json(registry_document())


def answer_of(row: dict[str, Any]) -> dict[str, Any]:
    """The part of an ``end`` row that the caller is told. Shared artifacts stay in the log: there may be many."""
    answer = {name: row[name] for name in ANSWER}
    return answer | {"outputs": [one for one in row["outputs"] if not one["path"].startswith("store:")]}


def _plain(value: Any, odd: Callable[[float], Any]) -> Any:
    """``value`` as JSON knows it; ``odd`` stands in for NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return odd(value)
    if isinstance(value, dict):
        return {str(key): _plain(item, odd) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, odd) for item in value]
    return value


def _loggable(args: Any) -> tuple[Any, str | None]:
    """Arguments as they may be logged, and why they are refused if they are."""
    if not isinstance(args, dict):
        return {"refused": f"{type(args).__name__}"}, "expected a JSON object of arguments"
    found: list[float] = []

    def named(value: float) -> str:
        found.append(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    try:
        plain = _plain(args, named)
        text = json.dumps(plain, default=str, ensure_ascii=False)
        size = len(text.encode("utf-8", "backslashreplace"))
    except (RecursionError, ValueError):
        return {"refused": "not JSON"}, "arguments are nested too deeply or are not JSON"
    if size > MAX_ARGUMENT_BYTES:
        digest = sha256_bytes(json.dumps(plain, default=str).encode())
        refused = {"refused": f"{size} bytes", "sha256": digest}
        return refused, f"arguments of {size} bytes; at most {MAX_ARGUMENT_BYTES} are taken"
    if not is_text(text):
        return plain, "a text holds half a character (a lone surrogate); give whole Unicode text"
    if found:
        return plain, "NaN and Infinity are not JSON numbers; give a finite number"
    return plain, None


def is_text(text: str) -> bool:
    """Whether a text is Unicode text, with no half of a surrogate pair alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _placed(step_id: Any, round_id: Any) -> tuple[str | None, int | None, str | None]:
    """Step and round as they may be logged, and why a call with them is refused if it is."""
    step_ok = isinstance(step_id, str) and len(step_id) <= MAX_STEP_CHARS
    if step_id is not None and not step_ok:
        return None, None, f"step_id: expected a text of at most {MAX_STEP_CHARS} characters"
    round_ok = isinstance(round_id, int) and not isinstance(round_id, bool) and 0 <= round_id <= 5
    if round_id is not None and not round_ok:
        return step_id, None, "round_id: expected a whole number from 0 to 5"
    return step_id, round_id, None


def _argument_problem(tool: Tool, error: ValidationError) -> InputError:
    """All that is wrong with the arguments, each with its name, so that one repair suffices."""
    names = list(tool.args_model().model_fields)
    told = []
    for item in error.errors(include_url=False, include_context=False)[:5]:
        field = ".".join(str(part) for part in item["loc"]) or "(arguments)"
        field = field[:MAX_NAME_CHARS]
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(field, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"the arguments are {', '.join(names)}"
            told.append(f"{field}: no such argument; {hint}")
        elif item["type"] == "missing":
            meaning = tool.args_model().model_fields[field].description if field in names else None
            told.append(f"{field}: Field required" + (f" ({meaning})" if meaning else ""))
        else:
            told.append(f"{field}: {item['msg']} (got {item['input']!r:.80})")
    return InputError("; ".join(told), file=f"{tool.id} arguments")


def _hashed(path: Path, named: str) -> dict[str, Any]:
    return {"path": named, "sha256": sha256_file(path), "size": path.stat().st_size}


def _missing(context: RunContext, relative: str) -> InputError:
    """A missing input, with what its folder does hold."""
    folder = context.path(relative).parent
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    where = folder.relative_to(context.workspace).as_posix()
    said = f"{where} holds {', '.join(held[:MAX_LISTED])}" if held else f"{where} is empty or missing"
    return InputError(f"file does not exist; {said}", file=relative)


def _inputs(
    context: RunContext, tool: Tool, given: ToolArgs
) -> tuple[list[dict[str, Any]], Exception | None]:
    """What the call reads, with hashes: workspace files (as copied), the slide, the evaluator's tables."""
    found: list[dict[str, Any]] = []
    problem: Exception | None = None
    for field in given.input_fields:
        named = getattr(given, field)
        if named is None:
            continue
        try:
            place = context.path(named)
            if not place.exists():
                problem = problem or _missing(context, named)
            found.append(_hashed(context.read_path(named), named))
        except (InputError, OSError, ValueError) as error:
            problem = problem or error
    if isinstance(slide := getattr(given, "slide_id", None), str):
        from acpbench.harness.slide_access import slide_input

        try:
            found.append(slide_input(context, slide))
        except (InputError, OSError, ValueError) as error:
            problem = problem or error
    for name in tool.reads:
        file: Path = getattr(context, name)
        with suppress(OSError):
            found.append(_hashed(file, f"evaluator:{file.name}"))
    return found, problem


def _without_roots(context: RunContext, message: str) -> str:
    """An error message in the agent's terms: no path of the evaluator's machine."""
    message = message.replace(f"{context.workspace}/", "").replace(str(context.workspace), "workspace")
    for root in (context.store_dir, context.features_dir, context.slides_dir, context.slides_base):
        message = message.replace(f"{root}/", "store:").replace(str(root), "store:")
    for file in (
        context.labels,
        context.slides_csv,
        context.exclusions_csv,
        context.encoders_config,
        context.task_file,
        context.tool_log,
        context.receipts,
    ):
        message = message.replace(str(file), f"evaluator:{file.name}")
    return message


def _ignore(label: str, done: int, total: int | None) -> None:
    pass


def call_tool(
    context: RunContext,
    tool_id: str,
    args: dict[str, Any],
    *,
    step_id: Any = None,
    round_id: Any = None,
    progress: Step | None = None,
    cancelled: Callable[[], bool] | None = None,
    refused: str | None = None,
) -> dict[str, Any]:
    """Run one tool and witness it. Returns the ``end`` row of the log (see :func:`answer_of`).

    A tool that fails, is refused or is cancelled is a row with its ``exit_status`` and a message to repair from,
    not an exception.

    Args:
        context: the run.
        tool_id: name in the registry.
        args: the tool's arguments as they came.
        step_id, round_id: the planned step and reflection round that this call belongs to, as they came.
        progress: hears how far a long call is.
        cancelled: asked at every step of the work; true stops it there.
        refused: why whoever serves the call refuses it; the tool is then not run.

    Raises:
        OSError: the log cannot be written; then nothing was run, or its end is not in the log.
    """
    with tempfile.TemporaryDirectory(prefix="acp-call-") as folder:
        step_id, round_id, misplaced = _placed(step_id, round_id)
        refused = misplaced or refused
        files = CallFiles(context.workspace, Path(folder))
        call = _Call(context.in_call(files), files, str(tool_id)[:MAX_NAME_CHARS], step_id, round_id)
        return call.run(args, refused, progress or _ignore, cancelled)


class _Call:
    """One call: what is checked, logged, run and logged again."""

    def __init__(
        self, context: RunContext, files: CallFiles, tool_id: str, step_id: str | None, round_id: int | None
    ) -> None:
        self.context, self.files, self.tool_id = context, files, tool_id
        self.step_id, self.round_id = step_id, round_id
        self.tool = TOOLS.get(tool_id)
        self.given: ToolArgs | None = None
        self.inputs: list[dict[str, Any]] = []

    def run(
        self, args: Any, refused: str | None, progress: Step, cancelled: Callable[[], bool] | None
    ) -> dict[str, Any]:
        """Witness the call from its start to its end. Returns the ``end`` row."""
        logged, refusal = _loggable(args)
        problem = self._check(args, refusal or refused)
        start_s = time.time()
        start = append_row(self.context.tool_log, lambda seq: self._start_row(seq, logged, start_s))
        outcome, exit_status, error = None, "error", None if problem is None else str(problem)
        if problem is None:
            outcome, exit_status, error = self._work(progress, cancelled)
        end_s = time.time()
        return append_row(
            self.context.tool_log,
            lambda seq: {
                "event": "end",
                "seq": seq,
                "call_id": start["call_id"],
                "tool": self.tool_id,
                "exit_status": exit_status,
                "t": iso_time(end_s),
                "duration_s": round(end_s - start_s, 3),
                "outputs": [] if outcome is None else self._outputs(outcome),
                "cache": None if outcome is None else outcome.cache,
                "error": None if error is None else self._told(error)[:MAX_ERROR_CHARS],
                "result": {}
                if outcome is None
                else _plain(outcome.result.model_dump(mode="json"), lambda _: None),
            },
        )

    def _check(self, args: Any, refusal: str | None) -> Exception | None:
        """Why the call cannot be run, if so; sets the typed arguments and the inputs."""
        if self.tool is None:
            near = difflib.get_close_matches(self.tool_id, TOOLS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            return InputError(f"unknown tool {self.tool_id!r}; {hint}the registry has {', '.join(TOOLS)}")
        if refusal is not None:
            return InputError(refusal, file=f"{self.tool_id} arguments")
        try:
            self.given = self.tool.args_model().model_validate(args)
        except ValidationError as error:
            return _argument_problem(self.tool, error)
        self.inputs, problem = _inputs(self.context, self.tool, self.given)
        return problem

    def _start_row(self, seq: int, logged: Any, start_s: float) -> dict[str, Any]:
        return {
            "event": "start",
            "seq": seq,
            "call_id": f"c{seq:04d}",
            "tool": self.tool_id,
            "args": logged,
            "resolved": None if self.given is None else self.given.model_dump(mode="json"),
            "step_id": self.step_id,
            "round_id": self.round_id,
            "t": iso_time(start_s),
            "inputs": self.inputs,
        }

    def _work(
        self, progress: Step, cancelled: Callable[[], bool] | None
    ) -> tuple[ToolOutcome | None, str, str | None]:
        """Run the tool and put its outputs in place: outcome, exit status, error."""
        assert self.tool is not None

        def check() -> None:
            if cancelled is not None and cancelled():
                raise CallCancelled

        try:
            with listening(progress, check):
                check()
                outcome = self.tool.function()(self.context, self.given)
            self.files.publish()
            return outcome, "ok", None
        except CallCancelled:
            return None, "cancelled", "cancelled by the caller"
        except InputError as error:
            return None, "error", str(error)
        except Exception as error:  # any tool failure is a recorded fact of the run, whatever its type
            # Paths go before the text is cut: half a path would no longer be recognised as one.
            told = self._told(" ".join(str(error).split()))
            return None, "error", f"{type(error).__name__}: {told[:400]}"

    def _outputs(self, outcome: ToolOutcome) -> list[dict[str, Any]]:
        """What was written, hashed where the agent could not touch it."""
        made = [self.files.made(path) or self._left(path) for path in outcome.outputs]
        return made + list(outcome.stored)

    def _left(self, relative: str) -> dict[str, Any]:
        """An output that a plug-in wrote into the workspace itself."""
        path = self.context.path(relative)
        return _hashed(path, relative) if path.is_file() else {"path": relative, "sha256": None, "size": None}

    def _told(self, message: str) -> str:
        return _without_roots(self.context, self.files.in_words(message))

"""Reader of ATIF documents, versions 1.5 to 1.8, also those that break the format's rules.

The document's head must be right (version, agent, at least one step). In its steps nothing is refused: a
step of an unknown source is kept as unknown, and what this project's own exporter put under ``extra`` is
read back.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from acpbench.core.errors import InputError
from acpbench.trajectory.atif import FILE_CHANGE, NAMESPACE, SCHEMA_VERSION
from acpbench.trajectory.bounded import dollars, items, mapping, moment, whole, words
from acpbench.trajectory.claude_messages import block_text, split_server
from acpbench.trajectory.parsing import Collector, summed
from acpbench.trajectory.typed import (
    AgentMessage,
    Event,
    FileChange,
    Reasoning,
    SessionEvent,
    ToolCall,
    ToolResult,
    Totals,
    TypedTrajectory,
    UsageEvent,
    UserMessage,
)

VERSIONS = ("1.5", "1.6", "1.7", "1.8")
MAX_SUBAGENT_DEPTH = 5
_VERSION = re.compile(r"ATIF-v(\d{1,3}\.\d{1,3})")
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def check_head(document: Any) -> None:
    """Refuse what is no ATIF document of a version read here.

    Raises:
        InputError: which field is wrong and what was expected.
    """
    if not isinstance(document, dict):
        raise InputError("is not a JSON object; expected an ATIF document")
    version = document.get("schema_version")
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        raise InputError(f"{str(version)[:60]!r} is not an ATIF version such as {SCHEMA_VERSION}",
                         field="schema_version")  # fmt: skip
    if found[1] not in VERSIONS:
        raise InputError(f"{version} is not read; versions {VERSIONS[0]} to {VERSIONS[-1]} are",
                         field="schema_version")  # fmt: skip
    if not isinstance(document.get("agent"), dict):
        raise InputError("is missing or not an object", field="agent")
    if not isinstance(document.get("steps"), list) or not document["steps"]:
        raise InputError("must be a list with at least one step", field="steps")


def from_atif(document: Any) -> TypedTrajectory:
    """The typed trajectory of an ATIF document; ``line`` is the step's index from 1.

    Raises:
        InputError: no ATIF document, or a version that is not read.
    """
    check_head(document)
    collector = Collector("atif", "atif")
    agent, typed = document["agent"], collector.typed
    typed.agent_name = words(agent.get("name"))
    typed.harness_version, typed.model = words(agent.get("version")), words(agent.get("model_name"))
    typed.session_id = words(document.get("session_id"))
    own = mapping(mapping(document.get("extra")).get(NAMESPACE))
    step_usage: list[Totals] = []
    if not any(_carried(step) == "session" for step in document["steps"]):
        names = [mapping(tool.get("function")).get("name") or tool.get("name")
                 for tool in items(agent.get("tool_definitions")) if isinstance(tool, dict)]  # fmt: skip
        collector.add(
            SessionEvent,
            session_id=typed.session_id,
            model=typed.model,
            harness_version=typed.harness_version,
            tools=[collector.text(name, 300) for name in names if name],
        )
    _steps(collector, document, None, 0, step_usage)
    _totals(collector, mapping(document.get("final_metrics")), step_usage, words(own.get("cost_source")))
    return collector.done()


def _carried(step: Any) -> Any:
    """Kind of the event that this project's exporter put whole into a step."""
    event = mapping(mapping(mapping(step).get("extra")).get(NAMESPACE)).get("event")
    return mapping(event).get("kind")


def _totals(
    collector: Collector, final: dict[str, Any], steps: list[Totals], cost_source: str | None
) -> None:
    totals = Totals(
        input_tokens=whole(final.get("total_prompt_tokens")),
        cached_tokens=whole(final.get("total_cached_tokens")),
        output_tokens=whole(final.get("total_completion_tokens")),
        reasoning_tokens=whole(mapping(final.get("extra")).get("reasoning_tokens")),
    )
    # What the document does not sum up is summed over its steps, number by number.
    of_steps = (summed(steps) or Totals()).known()
    cost, source = dollars(final.get("total_cost_usd")), "ATIF final_metrics.total_cost_usd"
    if cost is None:
        costs = [event.cost_usd for event in collector.events if isinstance(event, UsageEvent)]
        known = [one for one in costs if one is not None]
        cost, source = (sum(known), "ATIF step costs") if known else (None, source)
    collector.total(Totals(**of_steps | totals.known()), cost, cost_source or source)


def _steps(
    collector: Collector, document: dict[str, Any], agent: str | None, depth: int, used: list[Totals]
) -> None:
    for number, step in enumerate(items(document.get("steps")), start=1):
        collector.enter(number)
        collector.agent = agent
        if not isinstance(step, dict):
            collector.malformed(f"step {number} is no object", step)
            continue
        try:
            _step(collector, step, used)
        except Exception as error:  # one odd step must not lose the others
            collector.problem(f"step {number}: cannot be read ({type(error).__name__})")
            collector.unknown("step", step)
    for nested in items(document.get("subagent_trajectories")):
        if isinstance(nested, dict) and depth < MAX_SUBAGENT_DEPTH:
            name = (
                words(nested.get("trajectory_id")) or words(nested.get("session_id")) or f"subagent {depth}"
            )
            _steps(collector, nested, name, depth + 1, used)
        else:
            collector.unknown("subagent_trajectory", nested)


def _step(collector: Collector, step: dict[str, Any], used: list[Totals]) -> None:
    collector.at(step.get("timestamp"))
    marks = mapping(mapping(step.get("extra")).get(NAMESPACE))
    collector.agent = words(marks.get("agent")) or collector.agent
    if _carried(step) and _restore(collector, marks["event"]):
        return
    source, text = step.get("source"), collector.text(block_text(step.get("message")))
    if source == "agent":
        _agent_step(collector, step, text, words(marks.get("message_id")))
    elif source == "user":
        collector.add(UserMessage, text=text)
    elif source == "system":
        if "call_id" not in marks:
            collector.notice("system", text)
    else:
        collector.unknown(f"step/source:{source}", step)
        return
    _results(collector, step, marks)
    metrics = mapping(step.get("metrics"))
    spent = Totals(
        input_tokens=whole(metrics.get("prompt_tokens")),
        cached_tokens=whole(metrics.get("cached_tokens")),
        output_tokens=whole(metrics.get("completion_tokens")),
        reasoning_tokens=whole(mapping(metrics.get("extra")).get("reasoning_tokens")),
    )
    if spent.known() and source == "agent":
        used.append(spent)
        cost = dollars(metrics.get("cost_usd"))
        identity = words(marks.get("message_id"))
        collector.add(UsageEvent, message_id=identity, cost_usd=cost, **spent.model_dump())


def _restore(collector: Collector, body: Any) -> bool:
    """Read back an event that the exporter carried whole; False when it is none."""
    try:
        event = _EVENT.validate_python(collector.bounds.mapping(body) | {"seq": 0})
    except ValidationError:
        return False
    fields = event.model_dump(exclude={"seq", "kind", "line", "agent", "t"})
    if event.kind == "unknown":
        collector.unknown(fields["raw_kind"], fields["raw"])
    else:
        collector.add(type(event), agent=event.agent, t=moment(event.t), **fields)
    return True


def _agent_step(collector: Collector, step: dict[str, Any], text: str, identity: str | None) -> None:
    collector.typed.model = collector.typed.model or words(step.get("model_name"))
    if isinstance(step.get("reasoning_content"), str):
        collector.add(Reasoning, message_id=identity, text=collector.text(step["reasoning_content"]))
    calls = [call for call in items(step.get("tool_calls")) if isinstance(call, dict)]
    if text or not (calls or step.get("reasoning_content")):
        collector.add(AgentMessage, message_id=identity, text=text)
    for call in calls:
        extra = mapping(call.get("extra"))
        own_time = moment(extra.get("t"))
        arguments = collector.bounds.mapping(call.get("arguments"))
        if call.get("function_name") == FILE_CHANGE and set(arguments) == {"path", "change"}:
            collector.add(
                FileChange,
                path=collector.text(arguments["path"], 4_000),
                change=collector.text(arguments["change"], 100),
                is_error=extra.get("exit_status") == "error",
            )
            continue
        name, server = split_server(collector.text(call.get("function_name") or "(no name)", 300))
        collector.add(
            ToolCall,
            call_id=collector.text(call.get("tool_call_id"), 300),
            name=name,
            server=words(extra.get("server")) or server,
            arguments=arguments,
            message_id=identity,
            t=own_time,
        )


def _results(collector: Collector, step: dict[str, Any], marks: dict[str, Any]) -> None:
    calls = [call for call in items(step.get("tool_calls")) if isinstance(call, dict)]
    for result in items(mapping(step.get("observation")).get("results")):
        found, extra = mapping(result), mapping(mapping(result).get("extra"))
        content = collector.text(block_text(found.get("content")))
        if found.get("content") is None and found.get("subagent_trajectory_ref"):
            references = [mapping(ref) for ref in items(found["subagent_trajectory_ref"])]
            named = [str(ref.get("trajectory_path") or ref.get("session_id") or "") for ref in references]
            collector.notice("subagent_ref", ", ".join(named))
            continue
        call_id = words(found.get("source_call_id")) or words(marks.get("call_id"))
        if call_id is None:
            if step.get("source") != "agent" or len(calls) != 1:
                collector.notice("observation", content)
                continue
            call_id = collector.text(calls[0].get("tool_call_id"), 300)
        structured = extra.get("structured")
        collector.add(
            ToolResult,
            call_id=call_id,
            content=content,
            is_error=extra.get("is_error") is True or marks.get("is_error") is True,
            structured=collector.bounds.value(structured) if isinstance(structured, dict) else None,
            t=moment(extra.get("t")),
        )

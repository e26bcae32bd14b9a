"""The rules of the ATIF format (v1.7), written down a second time: what a valid document may and must be."""

from __future__ import annotations

from datetime import datetime
from typing import Any

HEAD = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics",
        "continued_trajectory_ref", "extra", "subagent_trajectories"}  # fmt: skip
AGENT = {"name", "version", "model_name", "tool_definitions", "extra"}
STEP = {"step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content",
        "tool_calls", "observation", "metrics", "is_copied_context", "llm_call_count", "extra"}  # fmt: skip
AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
CALL = {"tool_call_id", "function_name", "arguments", "extra"}
RESULT = {"source_call_id", "content", "subagent_trajectory_ref", "extra"}
METRICS = {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids",
           "completion_token_ids", "logprobs", "extra"}  # fmt: skip
FINAL = {"total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_cost_usd",
         "total_steps", "extra"}  # fmt: skip


def broken_rules(document: dict[str, Any]) -> list[str]:
    """What of the format's rules a document breaks; empty when it is valid."""
    broken: list[str] = []

    def need(holds: bool, what: str) -> None:
        if not holds:
            broken.append(what)

    need(set(document) <= HEAD, f"head fields {set(document) - HEAD}")
    agent = document["agent"]
    need(set(agent) <= AGENT, f"agent fields {set(agent) - AGENT}")
    need(
        isinstance(agent["name"], str) and isinstance(agent["version"], str), "agent without name or version"
    )
    steps = document["steps"]
    need(bool(steps), "no step")
    need([step["step_id"] for step in steps] == list(range(1, len(steps) + 1)), "step ids have gaps")
    seen: set[str] = set()
    for step in steps:
        at = f"step {step['step_id']}"
        need(set(step) <= STEP, f"{at}: fields {set(step) - STEP}")
        need(step["source"] in ("system", "user", "agent"), f"{at}: source {step['source']!r}")
        need(isinstance(step["message"], str), f"{at}: message is no text")
        if step["source"] != "agent":
            need(not AGENT_ONLY & set(step), f"{at}: agent-only fields")
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        own = set()
        for call in step.get("tool_calls", []):
            need(set(call) <= CALL, f"{at}: call fields {set(call) - CALL}")
            need(isinstance(call["arguments"], dict), f"{at}: arguments are no object")
            need(bool(call["tool_call_id"]) and bool(call["function_name"]), f"{at}: a call without a name")
            need(call["tool_call_id"] not in seen, f"{at}: call id {call['tool_call_id']} twice")
            seen.add(call["tool_call_id"])
            own.add(call["tool_call_id"])
        for result in step.get("observation", {}).get("results", []):
            need(set(result) <= RESULT, f"{at}: result fields {set(result) - RESULT}")
            if result.get("source_call_id") is not None:
                need(result["source_call_id"] in own, f"{at}: result of a call of another step")
        for name, value in step.get("metrics", {}).items():
            need(name in METRICS and (name == "extra" or isinstance(value, (int, float))), f"{at}: {name}")
    for name, value in document["final_metrics"].items():
        need(name in FINAL and (name == "extra" or isinstance(value, (int, float))), f"final_metrics {name}")
    need(document["final_metrics"]["total_steps"] == len(steps), "total_steps")
    return broken

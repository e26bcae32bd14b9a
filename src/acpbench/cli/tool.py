"""``acp-bench tool``: the pathology tools as agents call them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from acpbench.core.errors import InputError


@click.group()
def tool() -> None:
    """List and call the pathology tools that agents use."""


@tool.command("list")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_tools(style: str) -> None:
    """List the registry."""
    from acpbench.harness.registry import TOOLS, registry_document

    if style == "json":
        click.echo(json.dumps(registry_document(), indent=2))
        return
    width = max(len(name) for name in TOOLS)
    for name, entry in TOOLS.items():
        click.echo(f"{name:<{width}}  {entry.role:<18}  {entry.description}")


@tool.command("call")
@click.argument("tool_id")
@click.option("--args", "arguments", default="{}", help="Arguments as a JSON object.")
@click.option("--step", "step_id", help="Id of the planned step that this call carries out.")
@click.option("--round", "round_id", type=click.IntRange(0, 5), help="Reflection round (0 = first pass).")
def call(tool_id: str, arguments: str, step_id: str | None, round_id: int | None) -> None:
    """Call one tool inside a recorded workspace; prints its answer as JSON, exit code 1 on a tool error."""
    from acpbench.harness.tool_socket import ask, socket_path

    try:
        args = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", error)
        raise InputError(f"is not valid JSON ({reason})", field="--args") from None
    if not isinstance(args, dict):
        raise InputError("expected a JSON object", field="--args")
    if (path := socket_path()) is not None:
        asked = {"tool": tool_id, "args": args, "step_id": step_id, "round_id": round_id}
        answer = json.loads(ask(path, json.dumps(asked).encode()))
    else:
        from acpbench.harness.context import load_context
        from acpbench.harness.registry import answer_of, call_tool

        answer = answer_of(call_tool(load_context(), tool_id, args, step_id=step_id, round_id=round_id))
    click.echo(json.dumps(answer))
    if answer["exit_status"] != "ok":
        raise click.exceptions.Exit(1)


@tool.command("serve")
def serve() -> None:
    """Answer one call a line on standard input: {"tool", "args", "step_id", "round_id"}.

    One process for a whole run, so that heavy libraries load once; each call is logged as by ``call``.
    """
    from acpbench.harness.tool_socket import relay, socket_path

    if (path := socket_path()) is not None:
        raise click.exceptions.Exit(relay(path, "serve"))
    from acpbench.harness.context import load_context

    context = load_context()
    for answer in _answers(context, iter(sys.stdin.buffer.readline, b"")):
        click.echo(json.dumps(answer))


def _answers(context: Any, lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    from acpbench.harness.registry import ANSWER, answer_of, call_tool

    for line in lines:
        try:
            asked = json.loads(line)
            tool_id, args = str(asked["tool"]), asked.get("args") or {}
            step_id, round_id = asked.get("step_id"), asked.get("round_id")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"not a call ({type(error).__name__}); expected one JSON object a line"
            yield dict.fromkeys(ANSWER) | {
                "exit_status": "error",
                "error": message,
                "result": {},
                "outputs": [],
            }
            continue
        yield answer_of(call_tool(context, tool_id, args, step_id=step_id, round_id=round_id))

"""``acp-bench tool``: the pathology tools as agents call them."""

from __future__ import annotations

import json

import click

from acpbench.core.errors import InputError

ANSWER = ("exit_status", "error", "result", "outputs", "cache")


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
    from acpbench.harness.context import load_context
    from acpbench.harness.registry import call_tool

    try:
        args = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise InputError(f"is not valid JSON ({error.msg})", field="--args") from None
    if not isinstance(args, dict):
        raise InputError("expected a JSON object", field="--args")
    answer = call_tool(load_context(), tool_id, args, step_id=step_id, round_id=round_id)
    click.echo(json.dumps({key: answer[key] for key in ANSWER}))
    if answer["exit_status"] != "ok":
        raise click.exceptions.Exit(1)


@tool.command("serve")
def serve() -> None:
    """Answer one call a line on standard input: {"tool", "args", "step_id", "round_id"}.

    One process for a whole run, so that heavy libraries load once; each call is logged as by ``call``.
    """
    import sys

    from acpbench.harness.context import load_context
    from acpbench.harness.registry import call_tool

    context = load_context()
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            answer = call_tool(
                context,
                str(asked["tool"]),
                asked.get("args") or {},
                step_id=asked.get("step_id"),
                round_id=asked.get("round_id"),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"not a call ({type(error).__name__}); expected one JSON object a line"
            answer = dict.fromkeys(ANSWER) | {"exit_status": "error", "error": message, "result": {}}
        click.echo(json.dumps({key: answer[key] for key in ANSWER}))

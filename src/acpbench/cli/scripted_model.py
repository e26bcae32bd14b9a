"""``acp-bench scripted-model``: a model server on loopback that plays a scripted policy."""

from __future__ import annotations

import click

POLICIES = ("complete", "report_only", "no_reflection", "overclaim", "silent_failure", "crash")


@click.command()
@click.option("--policy", type=click.Choice(POLICIES), required=True, help="What the model does.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on 127.0.0.1; 0: a free one.",
)
@click.option("--encoder", default="color_stats", show_default=True, help="Encoder that the policy asks for.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed that the policy uses."
)
@click.option(
    "--idle-s",
    type=click.FloatRange(1),
    default=3600,
    show_default=True,
    help="End when no request came for so many seconds.",
)
def scripted_model(policy: str, port: int, encoder: str, seed: int, idle_s: float) -> None:
    """Serve a scripted policy as a model, to test a harness without one.

    Speaks Anthropic messages, OpenAI responses and OpenAI chat completions. The first line printed is a JSON
    object with the addresses to give a harness. Any key is accepted.
    """
    import json
    import signal
    import threading

    from acpbench.core.errors import InputError
    from acpbench.harness.scripted_model.server import ModelServer

    try:
        server = ModelServer(policy, encoder=encoder, seed=seed, port=port, idle_s=idle_s)
    except OSError as error:
        raise InputError(f"cannot listen on 127.0.0.1:{port} ({error.strerror})", field="--port") from None
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # shutdown() waits for the loop, which runs in this very thread.
        signal.signal(sign, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    addresses = {"policy": policy, "anthropic": server.url, "openai": f"{server.url}/v1"}
    click.echo(json.dumps(addresses))
    server.serve()

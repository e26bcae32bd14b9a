"""``acp-bench mcp``: the pathology tools as an MCP server."""

from __future__ import annotations

import click


@click.command()
def mcp() -> None:
    """Serve the run's tools over MCP on standard input and output (needs a run context).

    Where ACPBENCH_TOOL_SOCKET names a socket that the run's collector serves, bytes are passed on to it.
    """
    from acpbench.harness.tool_socket import relay, socket_path

    if (path := socket_path()) is not None:
        raise click.exceptions.Exit(relay(path, "mcp"))
    import logging
    import sys

    from acpbench.harness.context import load_context

    context = load_context()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    from acpbench.harness.mcp_server import serve

    serve(context)

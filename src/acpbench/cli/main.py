"""The ``acp-bench`` command. Subcommands are imported only when they are called."""

from __future__ import annotations

import importlib
import sys

import click

from acpbench import __version__
from acpbench.core.errors import InputError

COMMANDS: dict[str, tuple[str, str]] = {
    "tasks": ("acpbench.cli.tasks:tasks", "List and explain the benchmark's tasks."),
    "slides": ("acpbench.cli.slides:slides", "Inspect and tile whole-slide images."),
    "features": ("acpbench.cli.features:features", "Look into, import and export tile feature files."),
    "tool": ("acpbench.cli.tool:tool", "List and call the pathology tools that agents use."),
    "mcp": ("acpbench.cli.mcp:mcp", "Serve the pathology tools over MCP."),
    "run": ("acpbench.cli.run:run", "Run one group on one task and record the trajectory."),
    "scripted-model": (
        "acpbench.cli.scripted_model:scripted_model",
        "Serve a scripted policy as a model, to test a harness.",
    ),
    "import": ("acpbench.cli.import_:import_", "Write a record from a file of another program."),
    "check": ("acpbench.cli.check:check", "Apply the deterministic checkpoint rules to a record."),
    "judge": ("acpbench.cli.judge:judge", "Judge the semantic checkpoints of a record."),
    "adjudicate": ("acpbench.cli.adjudicate:adjudicate", "Combine checks, judgements and human audit."),
    "score": ("acpbench.cli.score:score", "Score a trajectory in the three lanes."),
    "report": ("acpbench.cli.report:report", "Write the study report."),
    "schemas": ("acpbench.cli.schemas:schemas", "Write or check the generated JSON Schemas."),
    "doctor": ("acpbench.cli.doctor:doctor", "Say what is installed and what is missing."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand (start-up below 0.2 s)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="acp-bench")
def cli() -> None:
    """ACP-Bench: recorded agent runs on pathology tasks, scored in three lanes that are never mixed."""


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    try:
        # Without standalone mode click returns the code of an Exit; commands themselves return nothing.
        code = cli(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        click.echo(f"acp-bench: error: {error}", err=True)
        sys.exit(2)
    except click.Abort:
        click.echo("acp-bench: stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # A full disk, a folder where a file should be: the user's to mend, and no fault of the program.
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"acp-bench: error: {where}{error.strerror or error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

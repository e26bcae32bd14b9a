"""OpenCode without a terminal (``opencode run --format json``).

Its stream has no end: a finished run and a killed one look alike. So an end is believed only when the process
went by itself and ``opencode export`` shows a last answer that is complete. Configuration and data lie in the
run's home; the key is named in the configuration, never written.
"""

from __future__ import annotations

import re
from typing import Any

from acpbench.core.files import write_json
from acpbench.core.groups import AnyGroup, OpenCodeGroup
from acpbench.harness.adapter import SERVER_NAME, Adapter, Capabilities, Evidence, Run, Status, url_endpoint
from acpbench.harness.decisions import api_failure, before_the_stream, by_the_stream, with_exit
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.meters import OpenCodeMeter
from acpbench.trajectory.bounded import moment
from acpbench.trajectory.opencode import parse_export
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import Terminal, TypedTrajectory

KEY_VARIABLE = "ACPBENCH_MODEL_KEY"
PROVIDER = "model"
_REFUSED_LINE = re.compile(
    r"^timestamp=(?P<t>\S+) level=ERROR .*message=\"stream error\".* small=false "
    r".*error\.error=\"(?P<error>[^\"]*)",
    re.MULTILINE,
)


def refused_in_log(stderr: str, typed: TypedTrajectory) -> str | None:
    """The last refused request that the log tells of, when the stream shows nothing after it."""
    found = list(_REFUSED_LINE.finditer(stderr))
    last = found[-1] if found else None
    failure = None if last is None else api_failure(last["error"])
    if last is None or failure is None:
        return None
    refused_t, acted = moment(last["t"]), [event.t for event in typed.events if event.t is not None]
    return failure if refused_t is not None and (not acted or refused_t > max(acted)) else None


class OpenCodeAdapter(Adapter):
    """``opencode`` 1.x."""

    name = "opencode"
    meter = OpenCodeMeter
    capabilities = Capabilities(
        mcp=True,
        skills_folder=".agents/skills",
        cost_reported=True,
        usage="sum of steps",
        live_usage=True,
        end_record=False,
        lists_tools=False,
        stream_format="opencode_run",
    )

    def endpoint(self, group: AnyGroup) -> tuple[str, int] | None:
        """The group's address."""
        assert isinstance(group, OpenCodeGroup)
        return url_endpoint(group.base_url)

    def secrets(self, group: AnyGroup) -> dict[str, str]:
        """The key, under the name that the configuration refers to."""
        assert isinstance(group, OpenCodeGroup)
        return {KEY_VARIABLE: group.api_key_env}

    def prepare(self, run: Run) -> Launch:
        """Write ``opencode.json`` and give the command."""
        group = run.group
        assert isinstance(group, OpenCodeGroup)
        run.home.mkdir(parents=True, exist_ok=True)
        config = run.home / "opencode.json"
        write_json(config, self._config(run, group))
        command = [run.executable, "run", "--format", "json", "--model", f"{PROVIDER}/{group.model}"]
        if group.provider.variant is not None:
            command += ["--variant", group.provider.variant]
        # What is not denied is allowed: a question that nobody answers is a rejection, and exit code 0.
        command += ["--thinking", "--auto"]
        # While it tries again after a refused request the stream is silent; its log on standard error is not.
        command += ["--print-logs", "--log-level", "ERROR", "--", run.prompt]
        return Launch(command, run.workspace, self._env(run), self.secrets(group), (config,))

    def _env(self, run: Run) -> dict[str, str]:
        folders = {
            f"XDG_{name}_HOME": str(run.home / "opencode" / name.lower())
            for name in ("DATA", "STATE", "CONFIG", "CACHE")
        }
        return (
            run.tool_env
            | folders
            | {
                "OPENCODE_CONFIG": str(run.home / "opencode.json"),
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                # A workspace under a checkout would else be taken for a part of it.
                "GIT_CEILING_DIRECTORIES": str(run.workspace.parent),
            }
        )

    def _config(self, run: Run, group: OpenCodeGroup) -> dict[str, Any]:
        model = f"{PROVIDER}/{group.model}"
        return {
            "$schema": "https://opencode.ai/config.json",
            "model": model,
            "small_model": model,
            "autoupdate": False,
            "share": "disabled",
            "provider": {
                PROVIDER: {
                    "npm": group.provider.npm,
                    "options": {
                        "baseURL": group.base_url,
                        "apiKey": f"{{env:{KEY_VARIABLE}}}",
                        "timeout": 600_000,
                    },
                    "models": {
                        group.model: {
                            "tool_call": True,
                            "limit": {
                                "context": group.provider.context_tokens,
                                "output": group.provider.output_tokens,
                            },
                        }
                    },
                }
            },
            "mcp": {
                SERVER_NAME: {
                    "type": "local",
                    "command": list(run.tool_command),
                    "environment": run.tool_env,
                    "enabled": True,
                    # For the list of tools (5 s are too few on a busy machine) and for each call.
                    "timeout": int(max(120.0, run.tool_timeout_s) * 1000),
                }
            },
            "permission": {
                "edit": "allow",
                "bash": "allow",
                "skill": "allow",
                "doom_loop": "allow",
                "external_directory": "allow" if run.sandboxed else "deny",
                "webfetch": "deny",
                "websearch": "deny",
            },
        }

    def confirm_command(self, run: Run, typed: TypedTrajectory) -> list[str] | None:
        """``opencode export``; nothing to ask for where the stream names no session."""
        return [run.executable, "export", typed.session_id] if typed.session_id else None

    def read_confirmation(self, document: dict[str, Any]) -> TypedTrajectory:
        """The typed trajectory of an export."""
        return parse_export(document)

    def decide(self, ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status:
        """Own exit, no error after the last step, and an export whose last answer is complete."""
        refused = refused_in_log(evidence.stderr, typed)
        if refused is not None and ending.watchdog in ("wall", "idle"):
            return Status(
                "infra_error", f"the model's API refused until the {ending.watchdog} limit: {refused}"
            )
        earlier = before_the_stream(ending, typed, evidence)
        if earlier is not None:
            return earlier
        status = by_the_stream(ending, typed)
        if status.run_status != "completed" or any(isinstance(event, Terminal) for event in typed.events):
            return status
        if evidence.export is None:
            return Status(
                "incomplete_stream",
                f"no end record, and no export to confirm one ({evidence.export_problem or 'not asked'})",
            )
        confirmed = stream_status(evidence.export)
        if confirmed[0] != "completed":
            return with_exit(ending, Status(confirmed[0], f"export: {confirmed[1]}"))
        return with_exit(ending, Status("completed", "own exit, last step stopped, export complete"))

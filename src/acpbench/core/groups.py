"""Harness/model groups (``groups.yaml``): one model per harness family, told apart by ``harness``.

No value here is a secret: a key is given by the name of the environment variable that holds it.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_yaml

Policy = Literal["complete", "overclaim", "no_reflection", "silent_failure", "crash", "report_only"]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
RESERVED_VARIABLES = (
    "PATH",
    "HOME",
    "ACPBENCH_RUN_CONTEXT",
    "ACPBENCH_TOOL_SOCKET",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
)
"""Variables of the agent that the adapters set themselves."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Limits(_Strict):
    """When a run is stopped; which limit fired is recorded. Tokens, cost and turns are the stream's."""

    wall_s: float | None = Field(None, gt=0, description="Wall time, s; default: the study's wall_limit_s.")
    idle_s: float | None = Field(
        1800, gt=0, description="Time without a byte of output or a tool call at work, s; null: no limit."
    )
    post_result_s: float = Field(30, gt=0, description="Time to exit after the terminal event, s.")
    output_mb: float = Field(
        512, gt=0, description="Size of the harness's output, MB (standard error apart)."
    )
    tokens: int | None = Field(None, gt=0, description="Input and output tokens, cached ones too.")
    cost_usd: float | None = Field(None, gt=0, description="Cost that the harness itself reports.")
    turns: int | None = Field(None, gt=0, description="Answers of the model (Codex: finished items).")


class Sandbox(_Strict):
    """What stands between the agent and the machine."""

    kind: Literal["auto", "bubblewrap", "none", "command"] = Field(
        "auto", description="auto: bubblewrap when it works here, else a plain process marked unsandboxed."
    )
    network: Literal["none", "loopback", "model_only", "host"] = Field(
        "host", description="What the agent reaches: nothing, its own loopback, the model alone, or all."
    )
    command: list[str] | None = Field(
        None,
        description="For kind command: words before the harness's; {workspace}, {home}, ... are filled in.",
    )
    stop: list[str] | None = Field(
        None, description="For kind command: run after the run, as docker kill {name}."
    )

    @model_validator(mode="after")
    def _fits(self) -> Sandbox:
        if (self.kind == "command") != (self.command is not None):
            raise ValueError("command belongs to kind: command, and kind: command needs it")
        if self.stop is not None and self.kind != "command":
            raise ValueError("stop belongs to kind: command")
        if self.kind == "none" and self.network != "host":
            raise ValueError(f"network: {self.network} needs a sandbox; kind: none has network: host alone")
        if self.kind == "command" and self.network == "model_only":
            raise ValueError(
                "network: model_only is kept by bubblewrap only; let the command restrict its network"
            )
        return self


class _Group(_Strict):
    label: str = Field(description="Name in the report.")
    description: str = Field("", description="One line for the report.")
    skills: Literal["study"] | None = Field(
        "study", description="study: the study's folder of skills; null: the ablation without."
    )


class ScriptedGroup(_Group):
    """The built-in, model-free harness."""

    harness: Literal["scripted"]
    policy: Policy = Field(
        description="complete, overclaim, no_reflection, silent_failure, crash or report_only."
    )


class _CommandLineGroup(_Group):
    model: str = Field(
        min_length=1,
        max_length=200,
        pattern=r"^[^\s-][^\s]*$",
        description="Model name as the endpoint knows it.",
    )
    base_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
        description="Address of the model's endpoint; default: the harness's own.",
    )
    executable: str = Field(description="Command of the harness: a name on PATH, or a path.")
    pass_env: list[VariableName] = Field(
        [], description="Further variables handed to the harness; their values are treated as secrets."
    )
    limits: Limits = Limits()
    sandbox: Sandbox = Sandbox()

    @model_validator(mode="after")
    def _free_names(self) -> _CommandLineGroup:
        taken = sorted(set(self.pass_env) & set(RESERVED_VARIABLES))
        if taken:
            raise ValueError(f"pass_env: {taken[0]} is set by the benchmark itself")
        return self


class ClaudeCodeProvider(_Strict):
    """Options of Claude Code."""

    auth: Literal["api_key", "bearer"] = Field("api_key", description="How the key is sent.")
    small_model: str | None = Field(None, description="Model of side calls; default: the model itself.")
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Reasoning effort."
    )
    max_output_tokens: int | None = Field(None, gt=0, description="Longest answer, tokens.")


class ClaudeCodeGroup(_CommandLineGroup):
    """Claude Code (``claude -p``)."""

    harness: Literal["claude_code"]
    executable: str = Field("claude", description="Command of the harness: a name on PATH, or a path.")
    api_key_env: VariableName = Field("ANTHROPIC_API_KEY", description="Variable that holds the key.")
    provider: ClaudeCodeProvider = ClaudeCodeProvider()


class CodexProvider(_Strict):
    """Options of Codex."""

    wire_api: Literal["responses"] = Field("responses", description="Protocol; Codex speaks no other now.")
    reasoning_effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Reasoning effort."
    )
    context_tokens: int | None = Field(
        None, gt=0, description="Context window, for models Codex does not know."
    )


class CodexGroup(_CommandLineGroup):
    """Codex (``codex exec``)."""

    harness: Literal["codex"]
    executable: str = Field("codex", description="Command of the harness: a name on PATH, or a path.")
    api_key_env: VariableName = Field("OPENAI_API_KEY", description="Variable that holds the key.")
    provider: CodexProvider = CodexProvider()


class OpenCodeProvider(_Strict):
    """Options of OpenCode."""

    npm: str = Field(
        "@ai-sdk/openai-compatible",
        pattern=r"^[@A-Za-z0-9._/-]+$",
        description="Package of the AI SDK that speaks the endpoint's protocol.",
    )
    context_tokens: int = Field(131_072, gt=0, description="Context window.")
    output_tokens: int = Field(16_384, gt=0, description="Longest answer.")
    variant: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.]+$", description="Variant of the model (effort)."
    )


class OpenCodeGroup(_CommandLineGroup):
    """OpenCode (``opencode run``)."""

    harness: Literal["opencode"]
    base_url: str = Field(
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$", description="Address of the model's endpoint."
    )
    executable: str = Field("opencode", description="Command of the harness: a name on PATH, or a path.")
    api_key_env: VariableName = Field("OPENAI_API_KEY", description="Variable that holds the key.")
    provider: OpenCodeProvider = OpenCodeProvider()


CommandLineGroup = ClaudeCodeGroup | CodexGroup | OpenCodeGroup
AnyGroup = ScriptedGroup | ClaudeCodeGroup | CodexGroup | OpenCodeGroup


class Group(RootModel[Annotated[AnyGroup, Field(discriminator="harness")]]):
    """One entry of ``groups.yaml``."""


class GroupsFile(_Strict):
    """``groups.yaml``: group id → group."""

    groups: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")], Group]


def _described(error: ValidationError, file: object) -> InputError:
    """The error in the words of the file: pydantic adds the chosen family to the path of a field."""
    first = dict(error.errors()[0])
    families = [family.model_fields["harness"].annotation.__args__[0] for family in AnyGroup.__args__]
    first["loc"] = tuple(part for part in first["loc"] if part not in families)
    if first["type"].startswith("union_tag"):
        first["loc"] += ("harness",)
        first["msg"] = f"expected one of {', '.join(families)}"
        first["input"] = first["input"].get("harness") if isinstance(first["input"], dict) else first["input"]
    return describe_validation(SimpleNamespace(errors=lambda: [first]), file)  # type: ignore[arg-type]


def parse_group(value: Any, file: object = None) -> AnyGroup:
    """One group. Raises ``InputError`` naming file and field."""
    try:
        return Group.model_validate(value).root
    except ValidationError as error:
        raise _described(error, file) from None


def load_groups(path: str | os.PathLike[str]) -> dict[str, AnyGroup]:
    """Read ``groups.yaml``: group id → group. Raises ``InputError`` naming file and field."""
    try:
        found = GroupsFile.model_validate(read_yaml(path)).groups
    except ValidationError as error:
        raise _described(error, path) from None
    return {name: group.root for name, group in found.items()}

"""The tools that a harness offers in its requests, and how a deed of a policy becomes a call of one of them.

Harnesses name the same things differently and change names between versions, so nothing is called that the
request did not offer, and argument names are taken from the offered schema.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

SERVER_NAME = "acp"
PAGE_LINES = 1000
"""Lines asked for at once: below what each harness gives without cutting."""
SHELL_BLOCK_BYTES = 60_000
"""A word of a command line has 128 KiB at most; quoted for JSON and a shell it must stay below that."""
SHELL_WAIT_MS = 30_000
SHELL_TOKENS = 40_000
SHELLS = ("Bash", "bash", "exec_command", "shell_command", "shell", "container.exec")
READERS = ("Read", "read")
WRITERS = ("Write", "write")
_NUMBERED = re.compile(r"^ *(\d{1,9})(?:→|\t|: |\| )(.*)$")
_SHELL_HEAD = re.compile(r"^Output:[ \t]*\r?\n", re.MULTILINE)
_SHELL_FAILED = re.compile(r"^Process (?:exited with code [1-9]|running with session)", re.MULTILINE)


@dataclass(frozen=True)
class Offer:
    """One tool of a request. ``properties``: argument name → its JSON type."""

    name: str
    properties: dict[str, Any]
    namespace: str | None = None
    kind: Literal["function", "custom"] = "function"


@dataclass(frozen=True)
class Call:
    """One tool call for a harness; ``text`` is the input of a ``custom`` (free-form) tool."""

    name: str
    arguments: dict[str, Any]
    namespace: str | None = None
    kind: Literal["function", "custom"] = "function"
    text: str = ""

    @property
    def body(self) -> str:
        """Arguments as the wire carries them."""
        return self.text if self.kind == "custom" else json.dumps(self.arguments, ensure_ascii=False)


def properties_of(schema: Any) -> dict[str, Any]:
    """Argument name → JSON type, from an input schema."""
    found = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(found, dict):
        return {}
    return {
        str(name): value.get("type") if isinstance(value, dict) else None for name, value in found.items()
    }


class Toolkit:
    """The tools of one request by what they are for."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self.offers = list(offers)
        self._shell = self._first(SHELLS)
        self._reader = self._first(READERS)
        self._writer = self._first(WRITERS)
        self._patcher = self._first(("apply_patch",), "custom")

    def _first(self, names: Iterable[str], kind: str = "function") -> Offer | None:
        own = {offer.name: offer for offer in self.offers if offer.kind == kind and offer.namespace is None}
        return next((own[name] for name in names if name in own), None)

    @property
    def can_work(self) -> bool:
        """Whether files can be written at all: requests for titles and the like offer nothing of the kind."""
        return self._shell is not None or self._writer is not None

    # -- shell --

    def shell(self, command: str, why: str) -> Call | None:
        """Run a command line."""
        offer = self._shell
        if offer is None:
            return None
        name = "cmd" if "cmd" in offer.properties else "command"
        words = ["bash", "-lc", command]
        arguments: dict[str, Any] = {name: words if offer.properties.get(name) == "array" else command}
        extra = {"description": why, "yield_time_ms": SHELL_WAIT_MS, "max_output_tokens": SHELL_TOKENS}
        arguments |= {key: value for key, value in extra.items() if key in offer.properties}
        return Call(offer.name, arguments)

    @staticmethod
    def shell_output(text: str) -> tuple[str, bool]:
        """What a command printed, without the head that a harness puts before it; and whether the head says
        that it failed, or did not end."""
        head = _SHELL_HEAD.search(text)
        if head is None:
            return text.replace("\r\n", "\n"), False
        failed = _SHELL_FAILED.search(text, 0, head.start()) is not None
        return text[head.end() :].replace("\r\n", "\n"), failed

    # -- files --

    def read(self, path: str, first_line: int) -> Call | None:
        """Read a page of a file with the harness's own tool."""
        offer = self._reader
        if offer is None:
            return None
        arguments: dict[str, Any] = {_path_name(offer): path}
        if first_line > 1 and "offset" in offer.properties:
            arguments["offset"] = first_line
        if "limit" in offer.properties:
            arguments["limit"] = PAGE_LINES
        return Call(offer.name, arguments)

    @staticmethod
    def numbered_lines(text: str, first_line: int) -> list[str]:
        """The lines in a reading tool's answer, each with its number before it, from ``first_line`` on."""
        lines: list[str] = []
        for line in text.split("\n"):
            found = _NUMBERED.match(line)
            if found and int(found[1]) == first_line + len(lines):
                lines.append(found[2])
        return lines

    @staticmethod
    def page_command(path: str, first_line: int) -> str:
        """The shell's way to read a page."""
        return f"sed -n '{first_line},{first_line + PAGE_LINES - 1}p' {shlex.quote(path)}"

    def write(self, path: str, text: str) -> Call | None:
        """Write a file with the harness's own tool."""
        if self._writer is not None:
            return Call(self._writer.name, {_path_name(self._writer): path, "content": text})
        if self._patcher is not None and text.endswith("\n"):
            lines = "".join(f"+{line}\n" for line in text[:-1].split("\n"))
            patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"
            return Call(self._patcher.name, {}, kind="custom", text=patch)
        return None

    @staticmethod
    def write_commands(path: str, text: str) -> list[str]:
        """The shell's way to write a file, in as many commands as its length needs; the bytes are exact."""
        target = shlex.quote(path)
        folder = shlex.quote(str(PurePosixPath(path).parent))
        if not text.endswith("\n"):
            # A here-document always ends a line.
            quoted = shlex.quote(text)
            return [f"mkdir -p {folder} && printf '%s' {quoted} > {target}"]
        mark = "END_OF_FILE"
        while mark in text:
            mark += "_"
        blocks: list[list[str]] = [[]]
        size = 0
        for line in text[:-1].split("\n"):
            size += len(line.encode("utf-8", "replace")) + 1
            if size > SHELL_BLOCK_BYTES and blocks[-1]:
                blocks.append([])
                size = len(line.encode("utf-8", "replace")) + 1
            blocks[-1].append(line)
        commands = []
        for number, block in enumerate(blocks):
            into = ">>" if number else ">"
            body = "\n".join(block)
            commands.append(f"mkdir -p {folder} && cat {into} {target} <<'{mark}'\n{body}\n{mark}")
        return commands

    # -- the registry's tools --

    def registry(self, tool: str, arguments: dict[str, Any]) -> Call | None:
        """Call a tool of the benchmark's MCP server; None when the harness does not offer it."""
        for offer in self.offers:
            spelled = offer.name if offer.namespace is None else f"{offer.namespace}__{offer.name}"
            if spelled in (f"mcp__{SERVER_NAME}__{tool}", f"{SERVER_NAME}_{tool}", f"{SERVER_NAME}__{tool}"):
                return Call(offer.name, arguments, offer.namespace)
        return None

    @staticmethod
    def answer_in(text: str) -> dict[str, Any] | None:
        """The registry's answer in what a harness passed on; None when there is none (whole) in it."""
        decoder = json.JSONDecoder()
        for found in re.finditer(r"\{", text):
            try:
                value, _ = decoder.raw_decode(text, found.start())
            except ValueError:
                continue
            if isinstance(value, dict) and "exit_status" in value:
                return value
        return None


def _path_name(offer: Offer) -> str:
    return next((name for name in ("file_path", "filePath", "path") if name in offer.properties), "path")

"""A policy's hands behind a model's answers: each deed is one tool call of the harness, or a few."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from acpbench.harness.policy_agent import EVENT_LOG, PolicyAgent
from acpbench.harness.scripted_model.toolkit import PAGE_LINES, Call, Toolkit

MAX_PAGES = 50
_WRITTEN = re.compile(r"success|created|updated|wrote|written", re.IGNORECASE)


class Result(NamedTuple):
    """What a harness answered to a call."""

    text: str
    is_error: bool


class NoWay(RuntimeError):
    """The harness offers no tool for what the policy does, or the tool failed."""


class Gone(RuntimeError):
    """The harness outlived its own end: the connection is dropped instead."""


class ModelAgent(PolicyAgent):
    """Asks the harness for each deed.

    ``ask`` puts one call into the model's next answer and waits for its result; ``tell`` adds words to that
    answer; ``toolkit`` gives the tools of the latest request.
    """

    def __init__(
        self, ask: Callable[[Call], Result], tell: Callable[[str], None], toolkit: Callable[[], Toolkit]
    ) -> None:
        super().__init__()
        self._ask, self._tell, self._toolkit = ask, tell, toolkit
        self._root: str | None = None

    def say(self, text: str) -> None:
        """Words of the model's next answer."""
        self._tell(text)

    def _shell(self, command: str, why: str) -> str:
        call = self._toolkit().shell(command, why)
        if call is None:
            raise NoWay(f"no shell to {why.lower()}")
        result = self._ask(call)
        printed, failed = Toolkit.shell_output(result.text)
        if failed or result.is_error:
            raise NoWay(f"{why}: {result.text[:300]}")
        return printed

    def _absolute(self, path: str) -> str:
        """File tools want absolute paths; where the workspace lies is asked once."""
        if self._root is None:
            try:
                printed = self._shell("pwd", "Print the working directory").strip()
            except NoWay:
                printed = ""
            self._root = printed if printed.startswith("/") else ""
        return f"{self._root}/{path}" if self._root else path

    def _page(self, path: str, first_line: int) -> list[str]:
        toolkit = self._toolkit()
        if toolkit.read("", 1) is not None:
            call = toolkit.read(self._absolute(path), first_line)
            result = Result("", True) if call is None else self._ask(call)
            lines = [] if result.is_error else Toolkit.numbered_lines(result.text, first_line)
            # A reader may answer without the text: that the file is too long, or is as it was read before.
            if lines or first_line > 1:
                return lines
        printed = self._shell(Toolkit.page_command(path, first_line), f"Read {path}")
        return printed.split("\n")[:-1] if printed.endswith("\n") else printed.split("\n")

    def read(self, path: str) -> str:
        """Read a file page by page; its last line gets its end back."""
        lines: list[str] = []
        for _ in range(MAX_PAGES):
            page = self._page(path, len(lines) + 1)
            lines += page
            if len(page) < PAGE_LINES:
                break
        while lines and not lines[-1]:
            lines.pop()
        return "".join(f"{line}\n" for line in lines)

    def look(self, path: str) -> None:
        """Read one page of a file."""
        self._page(path, 1)

    def write(self, path: str, text: str) -> None:
        """Write with the harness's own tool where there is one that works, else through its shell."""
        toolkit = self._toolkit()
        if toolkit.write("", "\n") is not None:
            call = toolkit.write(self._absolute(path), text)
            result = Result("", True) if call is None else self._ask(call)
            # Not every protocol marks a failed call.
            if not result.is_error and _WRITTEN.search(result.text):
                return
        for command in Toolkit.write_commands(path, text):
            self._shell(command, f"Write {path}")

    def skill_files(self) -> list[str]:
        """Skills in the workspace, as the shell lists them."""
        printed = self._shell("ls -d skills/*/SKILL.md 2>/dev/null || true", "List the skills")
        return sorted(line.strip() for line in printed.split("\n") if line.strip().endswith("SKILL.md"))

    def call(self, tool: str, args: dict[str, Any], step: str, round_id: int) -> dict[str, Any]:
        """Call a tool over MCP, with the step and the round among its arguments."""
        call = self._toolkit().registry(tool, {**args, "step_id": step, "round_id": round_id})
        if call is None:
            raise NoWay(f"the harness does not offer the tool {tool}")
        result = self._ask(call)
        answer = Toolkit.answer_in(result.text)
        if answer is None:
            said = result.text[:300] or "no answer"
            return {"exit_status": "error", "error": f"{tool}: {said}", "result": {}}
        return {"error": None, "result": {}} | answer

    def keep_log(self, text: str) -> None:
        """The agent's own log."""
        self.write(EVENT_LOG, text)

    def die(self) -> None:
        """Have the harness's own shell kill its parent, like a crash. Raises :class:`Gone` if that fails."""
        call = self._toolkit().shell("kill -KILL $PPID", "End the harness")
        if call is not None:
            self._ask(call)
        raise Gone("the harness lives on")

"""Claude Code: the ``stream-json`` output of ``claude -p`` and the session files of its projects folder.

Both carry the Anthropic message blocks. A stream has ``session_id`` on its lines, a ``system/init`` at its
start and a ``result`` at its end (several may come; the last counts), but times on few lines. A session file
has ``sessionId`` and a ``timestamp`` on each line, no end record, and sub-agents as side chains or as files
of their own. Facts: docs/howto-import-records.md.
"""

from __future__ import annotations

from typing import Any

from acpbench.trajectory.bounded import dollars, items, mapping, whole, words, yes
from acpbench.trajectory.claude_messages import Messages, claude_usage
from acpbench.trajectory.parsing import Collector, summed
from acpbench.trajectory.typed import SessionEvent, Terminal, Totals, UsageEvent

MAX_DURATION_MS = 366 * 86_400_000
SUBAGENT = "sidechain"
"""Name of a sub-agent whose lines do not name it (older session files)."""


class ClaudeStream:
    """``claude -p --output-format stream-json --verbose``."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.messages = Messages(collector)
        self.results: dict[str, dict[str, Any]] = {}
        self.cost: dict[str, float] = {}
        self.active_since_result = False

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind = row.get("type")
        self.out.at(row.get("timestamp"))
        self.out.agent = words(row.get("parent_tool_use_id"))
        if self.out.typed.session_id is None:
            self.out.typed.session_id = words(row.get("session_id"))
        if kind == "assistant":
            self.active_since_result = True
            self.messages.assistant(row)
        elif kind == "user":
            self.messages.user(row, row.get("tool_use_result"))
        elif kind == "system" and row.get("subtype") == "init":
            self.active_since_result = True
            self._init(row)
        elif kind == "result":
            self.active_since_result = False
            self._result(row)
        else:
            self.messages.other(row)

    def _init(self, row: dict[str, Any]) -> None:
        servers = {
            self.out.text(server.get("name"), 200): self.out.text(server.get("status"), 200)
            for server in items(row.get("mcp_servers"))[:1_000]
            if isinstance(server, dict)
        }
        typed = self.out.typed
        typed.model = typed.model or words(row.get("model"))
        typed.harness_version = typed.harness_version or words(row.get("claude_code_version"))
        self.out.add(
            SessionEvent,
            session_id=words(row.get("session_id")),
            model=words(row.get("model")),
            harness_version=words(row.get("claude_code_version")),
            cwd=words(row.get("cwd")),
            tools=[self.out.text(tool, 300) for tool in items(row.get("tools"))[:2_000]],
            mcp_servers=servers,
        )

    def _result(self, row: dict[str, Any]) -> None:
        session = str(row.get("session_id") or "")
        used = claude_usage(row.get("usage"))
        cost = dollars(row.get("total_cost_usd"))
        if used is not None or cost is not None:
            self.results[session] = row
            fields = (used or Totals()).model_dump()
            self.out.add(UsageEvent, cumulative=True, cost_usd=cost, **fields)
        for denial in items(row.get("permission_denials"))[:100]:
            self.out.notice("permission_denied", mapping(denial).get("tool_name"))
        subtype = words(row.get("subtype")) or "(no subtype)"
        flagged = yes(row.get("is_error"))
        refused = row.get("stop_reason") == "refusal"
        failed = flagged or subtype != "success" or refused
        status = row.get("api_error_status")
        reason = "refusal" if refused else subtype
        if flagged and subtype == "success":
            reason = f"api_error {status}" if status else "is_error"
        errors = [str(mapping(error).get("message") or error) for error in items(row.get("errors"))[:20]]
        # In `result` stands the agent's last message; of an error, only one of the API is told there.
        own = row.get("result") if subtype == "success" else None
        self.out.add(
            Terminal,
            outcome="error" if failed else "success",
            reason=self.out.text(reason, 200),
            is_error=flagged,
            detail=self.out.text("; ".join(errors) or own or row.get("terminal_reason")),
        )
        duration = whole(row.get("duration_ms"))
        if duration is not None and duration < MAX_DURATION_MS:
            self.out.typed.evidence["duration_s"] = duration / 1000

    def finish(self) -> None:
        """Totals: the result's own (of each session's last) where it has them, else the messages' sums."""
        totals = summed(filter(None, (claude_usage(row.get("usage")) for row in self.results.values())))
        costs = [dollars(row.get("total_cost_usd")) for row in self.results.values()]
        known = [cost for cost in costs if cost is not None]
        self.out.total(
            self._where_known(totals, self.messages.spent()),
            sum(known) if known else None,
            "claude_code result.total_cost_usd",
        )
        self._compare_models(totals)
        self.out.typed.evidence |= {
            "pending_calls": self.messages.pending(),
            "active_after_terminal": self.active_since_result,
        }

    def _where_known(self, totals: Totals | None, of_messages: Totals | None) -> Totals | None:
        """The result's numbers; the messages' for one that it leaves out, or when all of its are 0."""
        said, heard = (totals or Totals()).known(), (of_messages or Totals()).known()
        if said and not any(said.values()) and any(heard.values()):
            self.out.problem("the result's usage is 0; the tokens are those of the messages")
            said = {}
        return Totals(**heard | said)

    def _compare_models(self, totals: Totals | None) -> None:
        """Say so when the per-model sums of the results exceed the result's usage (background work)."""
        models = [model for row in self.results.values() for model in mapping(row.get("modelUsage")).values()]
        output = summed(Totals(output_tokens=whole(mapping(model).get("outputTokens"))) for model in models)
        if totals and output and (output.output_tokens or 0) > (totals.output_tokens or 0):
            self.out.problem(
                f"the result's usage has {totals.output_tokens} output tokens, "
                f"its modelUsage {output.output_tokens}"
            )


class ClaudeSession:
    """A session file of ``projects/<folder>/<session>.jsonl``; its sub-agents' files may be fed after it."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.messages = Messages(collector)
        self.seen = False

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind = row.get("type")
        self.out.at(row.get("timestamp"))
        if row.get("isSidechain") is True or words(row.get("agentId")):
            self.out.agent = words(row.get("agentId")) or SUBAGENT
        self._session(row)
        if kind == "assistant":
            self.messages.assistant(row)
        elif kind == "user":
            self.messages.user(row, row.get("toolUseResult"))
        else:
            self.messages.other(row)

    def _session(self, row: dict[str, Any]) -> None:
        """One session event, of the first line that names the session."""
        identity = words(row.get("sessionId"))
        if self.seen or identity is None:
            return
        self.seen = True
        typed = self.out.typed
        typed.session_id, typed.harness_version = identity, words(row.get("version"))
        self.out.add(
            SessionEvent,
            session_id=identity,
            harness_version=typed.harness_version,
            cwd=words(row.get("cwd")),
            agent=None,
        )

    def finish(self) -> None:
        """Totals: the sum over requests, sub-agents' too. A session file gives no cost."""
        self.out.total(self.messages.spent())
        self.out.typed.evidence |= {
            "pending_calls": self.messages.pending(),
            "stop_reason": self.messages.stop_reason,
            "last_speaker": self.messages.last_speaker,
        }

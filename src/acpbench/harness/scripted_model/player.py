"""One conversation: a policy in a thread of its own, a model's answer at a time.

The policy runs until it needs something of the harness; that call is the model's answer. The next request
brings the result and lets the policy go on. A request that comes twice (a harness that tries again) gets
the same answer twice.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from acpbench.harness.policies import POLICIES
from acpbench.harness.scripted_model.agent import Gone, ModelAgent, Result
from acpbench.harness.scripted_model.toolkit import Call, Toolkit

STEP_TIMEOUT_S = 120.0
MAX_CONVERSATIONS = 64
LAST_WORDS = "Done."


@dataclass(frozen=True)
class Turn:
    """One answer of the model.

    ``call``: the tool call in it, None in the last answer. ``failure``: why there is no answer but an error.
    ``drop``: the connection is to be closed instead of an answer.
    """

    message_id: str
    call_id: str
    text: str
    call: Call | None = None
    failure: str | None = None
    drop: bool = False


class _Closed(BaseException):
    """The conversation is given up; not an ``Exception``, so that no policy takes it for a failed tool."""


class Player:
    """A conversation. ``name`` is part of every call's id: the next request is known by it."""

    def __init__(self, name: str, policy: str, encoder: str, seed: int) -> None:
        self.name = name
        self.lock = threading.Lock()
        self._toolkit = Toolkit([])
        self._words: list[str] = []
        self._number = 0
        self._turn: Turn | None = None
        self._turns: queue.Queue[Turn] = queue.Queue(1)
        self._results: queue.Queue[Result | None] = queue.Queue(1)
        self._thread = threading.Thread(
            target=self._play, args=(policy, encoder, seed), name=f"policy-{name}", daemon=True
        )

    def _play(self, policy: str, encoder: str, seed: int) -> None:
        agent = ModelAgent(self._ask, self._words.append, lambda: self._toolkit)
        try:
            POLICIES[policy](agent, encoder, seed)
        except _Closed:
            return
        except Gone:
            self._turns.put(self._next(None, drop=True))
        except Exception as error:  # whatever stops a policy, the harness must hear of it
            self._turns.put(self._next(None, failure=f"{type(error).__name__}: {error}"))
        else:
            self._turns.put(self._next(None))

    def _next(self, call: Call | None, failure: str | None = None, drop: bool = False) -> Turn:
        self._number += 1
        text, self._words[:] = "\n".join(self._words), []
        number = f"{self.name}_{self._number}"
        if call is None and not text:
            text = LAST_WORDS
        return Turn(f"msg_{number}", f"call_{number}", text, call, failure, drop)

    def _ask(self, call: Call) -> Result:
        """Called by the policy's thread."""
        self._turns.put(self._next(call))
        result = self._results.get()
        if result is None:
            raise _Closed
        return result

    def answer(self, toolkit: Toolkit, results: Mapping[str, Result]) -> Turn:
        """The answer to a request with these tools and, by call id, these results."""
        with self.lock:
            self._toolkit = toolkit
            if self._turn is None:
                self._thread.start()
            elif self._turn.call is not None and self._turn.call_id in results:
                self._results.put(results[self._turn.call_id])
            else:
                return self._turn
            try:
                self._turn = self._turns.get(timeout=STEP_TIMEOUT_S)
            except queue.Empty:
                self._turn = Turn("msg_stuck", "call_stuck", "", failure="the policy does not answer")
            return self._turn

    def close(self) -> None:
        """Let the policy's thread end."""
        if self._turn is not None and self._turn.call is not None:
            try:
                self._results.put_nowait(None)
            except queue.Full:
                return


class Conversations:
    """All conversations of a server; the oldest is given up when there are too many."""

    def __init__(self, policy: str, encoder: str, seed: int) -> None:
        self.policy, self.encoder, self.seed = policy, encoder, seed
        self._lock = threading.Lock()
        self._players: OrderedDict[str, Player] = OrderedDict()
        self._begun = 0

    def player(self, results: Mapping[str, Result]) -> Player:
        """The conversation that a request belongs to, by the ids of its calls; a new one when it has none."""
        with self._lock:
            for call_id in reversed(list(results)):
                name = call_id.removeprefix("call_").rpartition("_")[0]
                if name in self._players:
                    return self._players[name]
            self._begun += 1
            player = Player(f"s{self._begun}", self.policy, self.encoder, self.seed)
            self._players[player.name] = player
            while len(self._players) > MAX_CONVERSATIONS:
                self._players.popitem(last=False)[1].close()
            return player

    def close(self) -> None:
        """Give all up."""
        with self._lock:
            for player in self._players.values():
                player.close()

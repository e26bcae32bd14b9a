"""The epochs of one training run: steps, inner validation, early stopping, and going on after a kill."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from acpbench.core.progress import track
from acpbench.mil.abmil import Mil, loss_of, normaliser_of
from acpbench.mil.checkpoint import Checkpoint
from acpbench.mil.cox import cox_loss
from acpbench.mil.prepared import Prepared
from acpbench.mil.settings import MilSettings

PASS_TILES = 8192
"""Tiles that go through the model at once; a larger step is computed in passes, to the same gradient. Small
passes stay in the processor's cache from the forward to the backward half."""
COX_PASS_TILES = 65_536
"""The same for survival, where passes cost a second forward half."""

Targets = dict[str, torch.Tensor]
Drawn = list[tuple[int, torch.Tensor | None]]
"""Bag numbers with the tiles drawn from each (``None``: all)."""
Part = tuple[Prepared, Targets]


class Run:
    """One training run: the model, its optimiser and every source of chance."""

    def __init__(
        self,
        model: Mil,
        settings: MilSettings,
        generator: torch.Generator,
        device: torch.device,
        weights: torch.Tensor | None,
    ) -> None:
        self.model, self.settings, self.generator, self.device = model, settings, generator, device
        self.weights = weights
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        self.history: list[dict[str, float | int | None]] = []
        self.best, self.best_epoch = math.inf, 0
        self.best_state = copy.deepcopy(model.state_dict())

    def fit(
        self, train: Part, val: Part | None, kept: Checkpoint
    ) -> tuple[list[dict[str, float | int | None]], int]:
        """Train; returns the history and the best epoch, whose weights the model then has."""
        state = kept.load()
        if state is not None:
            self._restore(state)
        for epoch in track(range(len(self.history) + 1, self.settings.max_epochs + 1), label="training"):
            if self._finished(epoch - 1):
                break
            train_loss = self._epoch(*train)
            val_loss = None if val is None else self._validate(train, val)
            self.history.append({"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss})
            if val_loss is not None and val_loss < self.best:
                self.best, self.best_epoch = val_loss, epoch
                self.best_state = copy.deepcopy(self.model.state_dict())
            self._keep(kept)
        kept.remove()
        if not math.isfinite(self.best):
            # No validation part or never a finite loss: there is nothing to choose by; the last epoch stays.
            return self.history, len(self.history)
        self.model.load_state_dict(self.best_state)
        return self.history, self.best_epoch

    def _finished(self, epoch: int) -> bool:
        return math.isfinite(self.best) and epoch - self.best_epoch >= self.settings.patience

    def _epoch(self, bags: Prepared, target: Targets) -> float:
        self.model.train()
        # The Cox risk set is all training patients, so survival takes one step an epoch over all of them.
        step = len(bags) if self.model.output_type == "survival" else self.settings.batch_size
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for index in torch.randperm(len(bags), generator=self.generator).split(step):
            drawn = [(i, self._draw(bags.sizes[i])) for i in index.tolist()]
            here = index.to(self.device)
            wanted = {name: values[here] for name, values in target.items()}
            self.optimiser.zero_grad()
            whole = self._backward_cox if self.model.output_type == "survival" else self._backward
            loss = whole(bags, drawn, wanted)
            self.optimiser.step()
            total += loss.double() * len(index)
        return float(total) / len(bags)

    def _draw(self, n_tiles: int) -> torch.Tensor | None:
        size = self.settings.bag_size
        if size is None or n_tiles <= size:
            return None
        return torch.randperm(n_tiles, generator=self.generator)[:size].sort().values

    def _forward(self, bags: Prepared, drawn: Drawn) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            return self.model([bags.tiles(i, rows) for i, rows in drawn])[0]

    def _backward(self, bags: Prepared, drawn: Drawn, target: Targets) -> torch.Tensor:
        """Add the gradient of one step; returns the loss. Bags are independent, so passes just add up."""
        normaliser = normaliser_of(target, self.weights)
        total = torch.zeros((), device=self.device)
        for start, end in _passes(bags, drawn, PASS_TILES):
            part = {name: values[start:end] for name, values in target.items()}
            output = self._forward(bags, drawn[start:end])
            loss = loss_of(self.model, output, part, self.weights, normaliser)
            loss.backward()
            total += loss.detach()
        return total

    def _backward_cox(self, bags: Prepared, drawn: Drawn, target: Targets) -> torch.Tensor:
        """The same for a loss that ties all bags together.

        A step that is too large to go through at once goes through twice, in passes: first without gradients
        for all outputs and the gradient of the loss by each of them, then again with the same dropout to
        carry those gradients on (gradient caching; Gao et al., RepL4NLP 2021). The result is exact.
        """
        passes = _passes(bags, drawn, COX_PASS_TILES)
        if len(passes) == 1:
            loss = loss_of(self.model, self._forward(bags, drawn), target, None)
            loss.backward()
            return loss.detach()
        chance, outputs = [], []
        with torch.no_grad():
            for start, end in passes:
                chance.append(self._chance())
                outputs.append(self._forward(bags, drawn[start:end]))
        output = torch.cat(outputs).requires_grad_()
        loss = loss_of(self.model, output, target, None)
        loss.backward()
        for state, (start, end) in zip(chance, passes, strict=True):
            self._set_chance(state)
            self._forward(bags, drawn[start:end]).backward(output.grad[start:end])
        return loss.detach()

    def _outputs(self, part: Prepared, rows: Drawn) -> torch.Tensor:
        passes = _passes(part, rows, PASS_TILES)
        return torch.cat([self._forward(part, rows[start:end]) for start, end in passes])

    def _validate(self, train: Part, val: Part) -> float | None:
        """Loss on the inner validation part, ``None`` when it is not finite."""
        self.model.eval()
        bags, target = val
        with torch.inference_mode():
            output = self._outputs(bags, [(i, None) for i in range(len(bags))])
            if self.model.output_type == "survival":
                value = self._left_out_likelihood(train, output.squeeze(1), target)
            else:
                weights = self.weights
                if weights is not None:
                    # A class that only the validation part has must still count, or its loss would be 0 / 0.
                    weights = torch.where(weights > 0, weights, weights.max())
                value = float(loss_of(self.model, output, target, weights))
        return value if math.isfinite(value) else None

    def _left_out_likelihood(self, train: Part, val_risk: torch.Tensor, val_target: Targets) -> float:
        """Cross-validated partial likelihood (Verweij and van Houwelingen 1993), negative and per patient.

        What the validation patients add to the training patients' partial likelihood. Their own partial
        likelihood would be empty or near it: a handful of patients has few pairs to compare.
        """
        bags, target = train
        limit = self.settings.eval_bag_size
        rows = [None if limit is None or n <= limit else torch.arange(limit) * n // limit for n in bags.sizes]
        train_risk = self._outputs(bags, list(enumerate(rows))).squeeze(1)
        event = torch.cat([target["event"], val_target["event"]])
        time = torch.cat([target["time"], val_target["time"]])
        together = cox_loss(torch.cat([train_risk, val_risk]), event, time, "sum")
        return float(together - cox_loss(train_risk, target["event"], target["time"], "sum")) / len(val_risk)

    def _chance(self) -> torch.Tensor:
        on_cuda = self.device.type == "cuda"
        return torch.cuda.get_rng_state(self.device) if on_cuda else torch.get_rng_state()

    def _set_chance(self, state: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)

    def _keep(self, kept: Checkpoint) -> None:
        kept.save(
            {
                "model": self.model.state_dict(),
                "best_state": self.best_state,
                "optimiser": self.optimiser.state_dict(),
                "generator": self.generator.get_state(),
                "chance": self._chance(),
            },
            {
                "history": self.history,
                "best": self.best if math.isfinite(self.best) else None,
                "best_epoch": self.best_epoch,
            },
        )

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self._set_chance(state["chance"])
        self.best_state, self.best_epoch = state["best_state"], state["best_epoch"]
        self.best = math.inf if state["best"] is None else state["best"]
        self.history = state["history"]


def _passes(bags: Prepared, drawn: Drawn, limit: int) -> list[tuple[int, int]]:
    """(first, end) places in ``drawn`` of runs of at most ``limit`` tiles, or of one bag."""
    edges, held = [0], 0
    for place, (index, rows) in enumerate(drawn):
        size = bags.sizes[index] if rows is None else len(rows)
        if place > edges[-1] and held + size > limit:
            edges.append(place)
            held = 0
        held += size
    return list(zip(edges, [*edges[1:], len(drawn)], strict=True))

"""Attention-based multiple-instance models, their output heads and losses.

Attention pooling follows Ilse, Tomczak and Welling (ICML 2018), with and without the gate. A batch is a list
of bags of any lengths; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import nn

from acpbench.core.errors import InputError
from acpbench.mil.cox import cox_loss

Aggregator = Literal["gated_abmil", "abmil", "mean"]
BLOCK_BAGS, BLOCK_TILES = 16, 2048
"""Bags are pooled together while a block has fewer bags and tiles than this."""
PIECE_TILES = 1024
"""On a CPU a long bag goes through in pieces of so many tiles: what one layer writes is still in the
processor's cache when the next one reads it."""


def n_outputs(output_type: str, n_classes: int) -> int:
    """Width of the head: classes, cumulative thresholds share one score, one number otherwise.

    Raises:
        InputError: unknown output type, or fewer than two classes for a class endpoint.
    """
    if output_type in ("continuous", "survival"):
        return 1
    if output_type not in ("binary", "multiclass", "ordinal"):
        raise InputError(f"output type {output_type!r} has no model head", field="output_type")
    if n_classes < 2:
        raise InputError(f"{n_classes} classes; a class endpoint needs at least 2", field="classes")
    return 1 if output_type == "ordinal" else n_classes


class Mil(nn.Module):
    """Tile projection, pooling over tiles, and a head.

    Args:
        in_dim: feature dimension D.
        output_type: binary, multiclass, ordinal, continuous or survival.
        n_classes: number of classes (ignored for continuous and survival).
        aggregator: gated attention, plain attention, or the mean over tiles.
        hidden_dim: width H of the projection.
        attention_dim: width of the attention network.
        dropout: dropout after the projection and before the head.
    """

    def __init__(
        self,
        in_dim: int,
        output_type: str,
        n_classes: int,
        *,
        aggregator: Aggregator = "gated_abmil",
        hidden_dim: int = 128,
        attention_dim: int = 64,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        self.output_type, self.aggregator = output_type, aggregator
        self.project = nn.Sequential(
            nn.Linear(in_dim, hidden_dim), nn.ReLU(inplace=True), nn.Dropout(dropout)
        )
        if aggregator not in ("gated_abmil", "abmil", "mean"):
            raise InputError(f"aggregator {aggregator!r}; expected gated_abmil, abmil or mean")
        if aggregator != "mean":
            self.attend = nn.Linear(hidden_dim, attention_dim)
            # No bias: the softmax over tiles would not see it.
            self.score = nn.Linear(attention_dim, 1, bias=False)
        if aggregator == "gated_abmil":
            self.gate = nn.Linear(hidden_dim, attention_dim)
        # The Cox likelihood does not see a constant either: a bias would follow the rounding errors.
        width, bias = n_outputs(output_type, n_classes), output_type != "survival"
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden_dim, width, bias=bias))
        if output_type == "ordinal":
            # Cut points -1, 0, 1, ... : the first one is free, the others are positive steps above it.
            self.first_cut = nn.Parameter(torch.tensor(-(n_classes - 2) / 2.0))
            self.log_steps = nn.Parameter(torch.zeros(n_classes - 2))

    def attention_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(N, H) → (N,) float32 unnormalised attention; zeros for mean pooling."""
        if self.aggregator == "mean":
            return hidden.new_zeros(len(hidden), dtype=torch.float32)
        attended = torch.tanh(self.attend(hidden))
        if self.aggregator == "gated_abmil":
            attended = attended * torch.sigmoid(self.gate(hidden))
        return self.score(attended).squeeze(-1).float()

    def pool_bag(self, pieces: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pool one bag, given piece by piece.

        Args:
            pieces: tensors (n, D) that make up the bag, in its order.

        Returns:
            (1, H) float32 weighted sum of the tiles' projections and (N,) attention that sums to 1.
        """
        hidden = [self.project(piece) for piece in pieces]
        logits = [self.attention_logits(part) for part in hidden]
        # Sums over thousands of tiles and the few numbers after them are not worth reduced precision.
        with torch.autocast(hidden[0].device.type, enabled=False):
            share = torch.softmax(torch.cat(logits), dim=0)
            shares = share.split([len(part) for part in hidden])
            sums = [weights @ part.float() for weights, part in zip(shares, hidden, strict=True)]
            return torch.stack(sums).sum(dim=0, keepdim=True), share

    def pool_block(self, bags: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Pool several short bags by one masked softmax and one matrix product.

        A few kernels for each of many short bags would cost more than the arithmetic.

        Args:
            bags: B tensors (N_b, D).

        Returns:
            (B, H) float32 and B attention vectors.
        """
        sizes = [len(bag) for bag in bags]
        hidden = self.project(torch.cat(list(bags)))
        logits = self.attention_logits(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            bag = torch.arange(len(sizes), device=hidden.device)
            own = bag.repeat_interleave(torch.tensor(sizes, device=hidden.device)) == bag[:, None]
            share = logits.expand(len(sizes), -1).masked_fill(~own, -torch.inf).softmax(dim=1)
            rows = [row[kept] for row, kept in zip(share, own, strict=True)]
            return share @ hidden.float(), rows

    def forward(self, bags: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Pool each bag and apply the head.

        Args:
            bags: B tensors (N_b, D), N_b >= 1.

        Returns:
            (B, outputs) raw outputs and B attention vectors (N_b,) that each sum to 1; all float32.
        """
        pooled, weights = [], []
        for block in _blocks(bags):
            if len(block) > 1:
                found, shares = self.pool_block(block)
                weights += shares
            else:
                step = PIECE_TILES if block[0].device.type == "cpu" else len(block[0])
                found, share = self.pool_bag(block[0].split(step))
                weights.append(share)
            pooled.append(found)
        with torch.autocast(bags[0].device.type, enabled=False):
            return self.head(torch.cat(pooled)), weights

    def cumulative_logits(self, output: torch.Tensor) -> torch.Tensor:
        """(B, 1) ordinal scores → (B, C - 1) logits of P(class > k), falling in k."""
        cuts = torch.cat([self.first_cut[None], torch.exp(self.log_steps)]).cumsum(0)
        return output - cuts

    def probabilities(self, output: torch.Tensor) -> torch.Tensor:
        """Class probabilities (B, C) of a class endpoint, rows summing to 1."""
        if self.output_type != "ordinal":
            return torch.softmax(output, dim=1)
        above = torch.sigmoid(self.cumulative_logits(output))
        edges = torch.cat([above.new_ones(len(above), 1), above, above.new_zeros(len(above), 1)], dim=1)
        return (edges[:, :-1] - edges[:, 1:]).clamp_min(0)


def _blocks(bags: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive bags that are pooled together."""
    block: list[torch.Tensor] = []
    n_tiles = 0
    for bag in bags:
        if block and (len(block) == BLOCK_BAGS or n_tiles + len(bag) > BLOCK_TILES):
            yield block
            block, n_tiles = [], 0
        block.append(bag)
        n_tiles += len(bag)
    if block:
        yield block


def class_weights(labels: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Inverse-frequency weights with mean 1 over the labelled rows; 0 for a class with no row.

    Args:
        labels: (B,) class codes.
        n_classes: number of classes C.

    Returns:
        (C,) finite weights.
    """
    counts = torch.bincount(labels, minlength=n_classes).to(torch.float32)
    weights = torch.where(counts > 0, 1 / counts.clamp_min(1), torch.zeros_like(counts))
    return weights * len(labels) / (weights * counts).sum()


def loss_of(
    model: Mil,
    output: torch.Tensor,
    target: dict[str, torch.Tensor],
    weights: torch.Tensor | None,
    normaliser: torch.Tensor | None = None,
) -> torch.Tensor:
    """Training loss of a batch of bags.

    Cross-entropy (binary, multiclass), sum of binary cross-entropies over cumulative thresholds (ordinal,
    McCullagh's proportional odds), squared error (continuous): weighted means over the bags. Cox negative
    partial log-likelihood with Efron ties over the bags of the batch (survival; 0 without an event).

    Args:
        model: the model that made ``output``.
        output: (B, outputs).
        target: ``label`` (B,) codes, ``value`` (B,) numbers, or ``time`` (B,) and ``event`` (B,) bool.
        weights: (C,) class weights or ``None``.
        normaliser: what the sum over bags is divided by, from :func:`normaliser_of` when ``None``; parts of a
            batch add up to the batch's loss when all are given the batch's. Not used for survival.
    """
    if model.output_type == "survival":
        return cox_loss(output.squeeze(1), target["event"], target["time"])
    if normaliser is None:
        normaliser = normaliser_of(target, weights)
    if model.output_type == "continuous":
        each = (output.squeeze(1) - target["value"]).square()
    elif model.output_type == "ordinal":
        logits = model.cumulative_logits(output)
        thresholds = torch.arange(logits.shape[1], device=logits.device)
        above = (target["label"][:, None] > thresholds).to(logits.dtype)
        each = nn.functional.binary_cross_entropy_with_logits(logits, above, reduction="none").sum(dim=1)
        if weights is not None:
            each = each * weights[target["label"]]
    else:
        each = nn.functional.cross_entropy(output, target["label"], weight=weights, reduction="none")
    return each.sum() / normaliser


def normaliser_of(target: dict[str, torch.Tensor], weights: torch.Tensor | None) -> torch.Tensor:
    """Sum of the bags' weights: their number without class weights."""
    if weights is not None and "label" in target:
        return weights[target["label"]].sum()
    some = next(iter(target.values()))
    return torch.tensor(float(len(some)), device=some.device)

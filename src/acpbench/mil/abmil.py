"""Attention-based multiple-instance models, their output heads and losses.

Attention pooling follows Ilse, Tomczak and Welling (ICML 2018), with and without the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from acpbench.core.errors import InputError

Aggregator = Literal["gated_abmil", "abmil", "mean"]


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
        hidden_dim: width of the projection.
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
        self.project = nn.Sequential(nn.Linear(in_dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout))
        if aggregator not in ("gated_abmil", "abmil", "mean"):
            raise InputError(f"aggregator {aggregator!r}; expected gated_abmil, abmil or mean")
        if aggregator != "mean":
            self.attend = nn.Linear(hidden_dim, attention_dim)
            self.score = nn.Linear(attention_dim, 1)
        if aggregator == "gated_abmil":
            self.gate = nn.Linear(hidden_dim, attention_dim)
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(hidden_dim, n_outputs(output_type, n_classes))
        )
        if output_type == "ordinal":
            # Cut points -1, 0, 1, ... : the first one is free, the others are positive steps above it.
            self.first_cut = nn.Parameter(torch.tensor(-(n_classes - 2) / 2.0))
            self.log_steps = nn.Parameter(torch.zeros(n_classes - 2))

    def attention_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(N, hidden) → (N,) unnormalised attention; zeros for mean pooling."""
        if self.aggregator == "mean":
            return hidden.new_zeros(len(hidden))
        attended = torch.tanh(self.attend(hidden))
        if self.aggregator == "gated_abmil":
            attended = attended * torch.sigmoid(self.gate(hidden))
        return self.score(attended).squeeze(-1)

    def forward(self, bags: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Pool each bag and apply the head.

        Args:
            bags: B tensors (N_b, D), N_b >= 1.

        Returns:
            (B, outputs) raw outputs and B attention vectors (N_b,) that each sum to 1.
        """
        sizes = [len(bag) for bag in bags]
        hidden = self.project(torch.cat(list(bags)))
        parts = hidden.split(sizes)
        weights = [torch.softmax(part, dim=0) for part in self.attention_logits(hidden).split(sizes)]
        pooled = torch.stack([weight @ part for weight, part in zip(weights, parts, strict=True)])
        return self.head(pooled), weights

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
    model: Mil, output: torch.Tensor, target: dict[str, torch.Tensor], weights: torch.Tensor | None
) -> torch.Tensor:
    """Training loss of a batch of bags.

    Cross-entropy (binary, multiclass), sum of binary cross-entropies over cumulative thresholds (ordinal,
    McCullagh's proportional odds), squared error (continuous), Cox negative partial log-likelihood with
    Efron ties over the bags of the batch (survival; 0 when the batch has no event).

    Args:
        model: the model that made ``output``.
        output: (B, outputs).
        target: ``label`` (B,) codes, ``value`` (B,) numbers, or ``time`` (B,) and ``event`` (B,) bool.
        weights: (C,) class weights or ``None``.
    """
    if model.output_type in ("binary", "multiclass"):
        return nn.functional.cross_entropy(output, target["label"], weight=weights)
    if model.output_type == "ordinal":
        logits = model.cumulative_logits(output)
        above = (target["label"][:, None] > torch.arange(logits.shape[1])).to(logits.dtype)
        each = nn.functional.binary_cross_entropy_with_logits(logits, above, reduction="none").sum(dim=1)
        if weights is None:
            return each.mean()
        row = weights[target["label"]]
        return (each * row).sum() / row.sum()
    if model.output_type == "continuous":
        return nn.functional.mse_loss(output.squeeze(1), target["value"])
    return cox_loss(output.squeeze(1), target["event"], target["time"])


def cox_loss(
    log_hazard: torch.Tensor, event: torch.Tensor, time: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """Cox negative partial log-likelihood (torchsurv, Efron ties).

    The risk set is every bag given, so it must be called with all training bags, not one at a time.

    Args:
        log_hazard: (B,) higher means an earlier event.
        event: (B,) bool.
        time: (B,) follow-up.
        reduction: ``mean`` over events, or ``sum``.

    Returns:
        The loss; 0 without an event or with fewer than two bags.
    """
    import warnings

    if len(log_hazard) < 2 or not event.any():
        return log_hazard.sum() * 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchsurv.loss.cox import neg_partial_log_likelihood

        return neg_partial_log_likelihood(log_hazard, event, time, ties_method="efron", reduction=reduction)

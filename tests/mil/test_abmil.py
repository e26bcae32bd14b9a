"""The model against its formulas, the Cox loss against torchsurv, attention MIL against torchmil."""

from __future__ import annotations

import json
import math
import os
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from acpbench.mil.abmil import Mil, loss_of
from acpbench.mil.cox import cox_loss

PEER = Path("benchmarks") / ".peers" / "torchmil" / "bin" / "python"


def random_bags(sizes: list[int], width: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, width, generator=generator) for size in sizes]


def by_hand(model: Mil, bag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ilse et al. 2018, equations 8 and 9: a_k = softmax_k w'(tanh(V h_k) * sigm(U h_k)), z = sum a_k h_k."""
    held = {name: value.detach().numpy().astype(float) for name, value in model.state_dict().items()}
    h = np.maximum(bag @ held["project.0.weight"].T + held["project.0.bias"], 0)
    if model.aggregator == "mean":
        share = np.full(len(h), 1 / len(h))
    else:
        inner = np.tanh(h @ held["attend.weight"].T + held["attend.bias"])
        if model.aggregator == "gated_abmil":
            inner = inner / (1 + np.exp(-(h @ held["gate.weight"].T + held["gate.bias"])))
        e = np.exp(inner @ held["score.weight"][0])
        share = e / e.sum()
    return (share @ h) @ held["head.1.weight"].T + held["head.1.bias"], share


@pytest.mark.parametrize("aggregator", ["gated_abmil", "abmil", "mean"])
@pytest.mark.parametrize("sizes", [[1], [7], [3, 1, 5, 2], [1] * 40, [300, 700, 2, 1500, 900], [5000, 4000]])
def test_output_and_attention_are_those_of_the_formula(aggregator, sizes):
    torch.manual_seed(1)
    model = Mil(6, "multiclass", 3, aggregator=aggregator, hidden_dim=8, attention_dim=4).eval()
    bags = random_bags(sizes, 6)
    output, weights = model(bags)
    assert [len(part) for part in weights] == sizes
    for bag, row, part in zip(bags, output, weights, strict=True):
        expected, share = by_hand(model, bag.numpy().astype(float))
        assert row.detach().numpy() == pytest.approx(expected, abs=1e-5)
        assert part.detach().numpy() == pytest.approx(share, abs=1e-6)


def test_gradients_do_not_depend_on_which_bags_share_a_batch():
    torch.manual_seed(2)
    model = Mil(6, "binary", 2, hidden_dim=8, attention_dim=4).eval()
    bags, labels = random_bags([3, 1, 900, 5, 40, 2], 6), torch.tensor([0, 1, 1, 0, 1, 0])
    loss_of(model, model(bags)[0], {"label": labels}, None).backward()
    together = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for bag, label in zip(bags, labels, strict=True):
        (loss_of(model, model([bag])[0], {"label": label[None]}, None) / len(bags)).backward()
    for parameter, expected in zip(model.parameters(), together, strict=True):
        assert torch.allclose(parameter.grad, expected, atol=1e-6)


@pytest.mark.parametrize("aggregator", ["gated_abmil", "abmil", "mean"])
@pytest.mark.parametrize("output_type", ["binary", "multiclass", "ordinal", "continuous", "survival"])
def test_the_loss_depends_on_every_weight(output_type, aggregator):
    """Adam would move a weight that the loss does not see by whole steps, led by rounding errors alone."""
    torch.manual_seed(3)
    model = Mil(6, output_type, 3, aggregator=aggregator, hidden_dim=8, attention_dim=4).double().eval()
    bags = [bag.double() for bag in random_bags([3, 1, 9, 5, 4, 2], 6)]
    target = {
        "label": torch.tensor([0, 1, 2, 0, 1, 2]), "value": torch.randn(6).double(),
        "time": torch.rand(6).double(), "event": torch.tensor([True, True, False, True, False, True]),
    }  # fmt: skip
    pooled = torch.cat([model.pool_bag([bag])[0] for bag in bags]).double()
    loss_of(model, model.head(pooled), target, None).backward()
    unseen = [name for name, weight in model.named_parameters() if weight.grad.abs().max() < 1e-6]
    assert unseen == []


def test_cox_loss_by_hand():
    # times 1 < 2 < 3, events 1 0 1, log hazards 1 0 -1; risk sets {1,2,3} and {3}
    value = cox_loss(
        torch.tensor([1.0, 0.0, -1.0]), torch.tensor([True, False, True]), torch.tensor([1.0, 2, 3])
    )
    expected = (math.log(math.e + 1 + 1 / math.e) - 1 + 0) / 2
    assert float(value) == pytest.approx(expected, rel=1e-5)
    right = cox_loss(torch.tensor([2.0, 1, 0]), torch.ones(3, dtype=bool), torch.tensor([1.0, 2, 3]))
    wrong = cox_loss(torch.tensor([0.0, 1, 2]), torch.ones(3, dtype=bool), torch.tensor([1.0, 2, 3]))
    assert right < wrong


def test_cox_ties_by_hand():
    # Efron: two events at time 1 (hazards 2 and 1, as exp) among three at risk (2 + 1 + 4 = 7):
    # log 7 - log 2, then log(7 - 3 / 2) - log 1
    hazard = torch.log(torch.tensor([2.0, 1.0, 4.0]))
    value = cox_loss(hazard, torch.tensor([True, True, False]), torch.tensor([1.0, 1.0, 2.0]), "sum")
    assert float(value) == pytest.approx(math.log(7) - math.log(2) + math.log(5.5), rel=1e-6)


@pytest.mark.filterwarnings("ignore:Ties in")
@pytest.mark.parametrize("seed", range(12))
def test_cox_value_and_gradient_are_those_of_torchsurv(seed):
    from torchsurv.loss.cox import neg_partial_log_likelihood

    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    # Whole-number times make ties; every third case has none.
    time = rng.random(n) if seed % 3 == 0 else rng.integers(1, 6, n) * 1.0
    event = rng.random(n) < (0.2, 0.6, 1.0)[seed % 3]
    event[0] = True
    risk = rng.normal(size=n) * 2
    results = []
    for loss in (cox_loss, partial(neg_partial_log_likelihood, ties_method="efron")):
        hazard = torch.from_numpy(risk.copy()).requires_grad_()
        value = loss(hazard, torch.from_numpy(event), torch.from_numpy(time), reduction="sum")
        value.backward()
        results.append((float(value.detach()), hazard.grad.numpy()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-5)
    # torchsurv's mean is over event times when there are ties and over events when there are none; ours is
    # always over events.
    mean = cox_loss(torch.from_numpy(risk), torch.from_numpy(event), torch.from_numpy(time))
    assert float(mean) == pytest.approx(results[1][0] / event.sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("hazard", "event"),
    [([1.0, 2.0], [False, False]), ([3.0], [True]), ([0.5], [False]), ([1.0, -1.0, 0.0], [False] * 3)],
)
def test_a_batch_without_events_or_pairs_costs_nothing_and_is_never_nan(hazard, event):
    risk = torch.tensor(hazard, requires_grad=True)
    value = cox_loss(risk, torch.tensor(event), torch.arange(len(hazard)) * 1.0)
    value.backward()
    assert float(value.detach()) == 0 and risk.grad.tolist() == [0.0] * len(hazard)


def test_cox_loss_of_extreme_risks_is_finite():
    risk = torch.tensor([900.0, -900.0, 0.0, 900.0], requires_grad=True)
    value = cox_loss(risk, torch.ones(4, dtype=bool), torch.tensor([1.0, 1.0, 2.0, 2.0]))
    value.backward()
    assert math.isfinite(float(value.detach())) and torch.isfinite(risk.grad).all()


@pytest.mark.slow
@pytest.mark.parametrize("gated", [True, False])
def test_logits_attention_and_gradient_are_those_of_torchmil(repository, tmp_path, gated):
    python = repository / PEER
    if not python.is_file():
        pytest.skip("torchmil is not installed; `python benchmarks/mil_training.py` makes its environment")
    torch.manual_seed(3)
    model = Mil(
        12, "binary", 2, aggregator="gated_abmil" if gated else "abmil", hidden_dim=16, attention_dim=8
    ).eval()
    bags, labels = random_bags([1, 5, 300, 40], 12), torch.tensor([1, 0, 1, 0])
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    given = {"state": state, "gated": gated, "bags": [bag.tolist() for bag in bags], "y": labels.tolist()}
    (tmp_path / "in.json").write_text(json.dumps(given))
    script = repository / "benchmarks" / "peers" / "torchmil_forward.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), str(script), str(tmp_path / "in.json")],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    output, weights = model(bags)
    assert (output[:, 1] - output[:, 0]).tolist() == pytest.approx(theirs["logits"], abs=1e-5)
    for ours, peer in zip(weights, theirs["attention"], strict=True):
        assert ours.tolist() == pytest.approx(peer, abs=1e-5)
    loss = loss_of(model, output, {"label": labels}, None)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(theirs["loss"], abs=1e-5)
    gradient = model.project[0].weight.grad.flatten().tolist()
    assert gradient == pytest.approx(theirs["gradient"], abs=1e-5)

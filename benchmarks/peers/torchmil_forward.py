"""torchmil's ABMIL with given weights: logits, attention, loss and the gradient of the first layer, as JSON.

    python torchmil_forward.py IN.json

IN.json: ``state`` (weights of acpbench's two-class model), ``gated``, ``bags`` and ``y``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torchmil.data import collate_fn
from torchmil.models import ABMIL
from torchmil.nn import masked_softmax

given = json.loads(Path(sys.argv[1]).read_text())
state = {name: torch.tensor(value) for name, value in given["state"].items()}
hidden, width = state["project.0.weight"].shape
features = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU())
model = ABMIL((width,), att_dim=len(state["attend.weight"]), gated=given["gated"], feat_ext=features)
# Two logits of a softmax are one logit of a sigmoid: their difference.
wanted = {
    "feat_ext.0.weight": state["project.0.weight"],
    "feat_ext.0.bias": state["project.0.bias"],
    "pool.fc1.weight": state["attend.weight"],
    "pool.fc1.bias": state["attend.bias"],
    "pool.fc2.weight": state["score.weight"],
    "classifier.weight": state["head.1.weight"][1:] - state["head.1.weight"][:1],
    "classifier.bias": state["head.1.bias"][1:] - state["head.1.bias"][:1],
}
if given["gated"]:
    wanted |= {"pool.fc_gated.weight": state["gate.weight"], "pool.fc_gated.bias": state["gate.bias"]}
own = model.state_dict()
named = {name.replace(".module.", "."): name for name in own}
model.load_state_dict({named[name]: value for name, value in wanted.items()}, strict=True)
bags = [torch.tensor(bag) for bag in given["bags"]]
truth = torch.tensor(given["y"], dtype=torch.float32)
batch = collate_fn([{"X": bag, "Y": y} for bag, y in zip(bags, truth, strict=True)])
model.eval()
logits, attention = model(batch["X"], batch["mask"], return_att=True)
shares = masked_softmax(attention[..., None], batch["mask"][..., None])[..., 0]
loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth)
loss.backward()
print(
    json.dumps(
        {
            "logits": logits.tolist(),
            "attention": [share[: len(bag)].tolist() for share, bag in zip(shares, bags, strict=True)],
            "loss": float(loss),
            "gradient": model.feat_ext[0].weight.grad.flatten().tolist(),
        }
    )
)

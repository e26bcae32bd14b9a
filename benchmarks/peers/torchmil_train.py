"""Train torchmil's gated ABMIL as its README does, or in a plain loop; print CPU seconds and test scores.

    python torchmil_train.py BAGS.npz trainer|loop EPOCHS BATCH HIDDEN ATTENTION LR SEED

BAGS.npz: X float32 (sum of N, D), sizes, y (0/1), part (0 train, 1 validation, 2 test).
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchmil.data import collate_fn
from torchmil.models import ABMIL
from torchmil.utils import Trainer

path, how = sys.argv[1:3]
epochs, batch_size, hidden, attention = (int(value) for value in sys.argv[3:7])
lr, seed = float(sys.argv[7]), int(sys.argv[8])
torch.set_num_threads(1)
torch.manual_seed(seed)
held = np.load(path)
edges = np.r_[0, np.cumsum(held["sizes"])]
tiles = torch.from_numpy(held["X"])


class Bags(torch.utils.data.Dataset):
    """Bags of one part as torchmil's data sets give them."""

    def __init__(self, part: int) -> None:
        self.rows = np.flatnonzero(held["part"] == part)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        return {"X": tiles[edges[row] : edges[row + 1]], "Y": torch.tensor(float(held["y"][row]))}


train, val, test = (Bags(part) for part in range(3))
features = torch.nn.Sequential(torch.nn.Linear(tiles.shape[1], hidden), torch.nn.ReLU())
model = ABMIL(in_shape=(tiles.shape[1],), att_dim=attention, gated=True, feat_ext=features)
optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)
train_loader = DataLoader(train, batch_size=batch_size, shuffle=True, collate_fn=collate_fn)
val_loader = DataLoader(val, batch_size=batch_size, collate_fn=collate_fn)
start = time.process_time()
if how == "trainer":
    trainer = Trainer(model, optimiser, device="cpu", disable_pbar=True, verbose=False)
    trainer.train(epochs, train_loader, val_loader)
else:
    for _ in range(epochs):
        model.train()
        for batch in train_loader:
            optimiser.zero_grad()
            _, losses = model.compute_loss(batch["Y"], batch["X"], batch["mask"])
            losses["BCEWithLogitsLoss"].backward()
            optimiser.step()
        model.eval()
        with torch.inference_mode():
            for batch in val_loader:
                model.compute_loss(batch["Y"], batch["X"], batch["mask"])
seconds = time.process_time() - start
model.eval()
with torch.inference_mode():
    scores = [float(model(test[i]["X"][None])) for i in range(len(test))]
print(json.dumps({"seconds": seconds, "scores": scores, "truth": held["y"][test.rows].tolist()}))

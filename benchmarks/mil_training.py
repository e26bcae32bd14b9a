"""Time to train gated ABMIL on the same bags, epochs, model size and optimiser, against torchmil.

    python benchmarks/mil_training.py [--output FILE]

torchmil is run twice: by its Trainer and DataLoader with batches of 4, as its README shows, and in a plain
loop with one bag a step and validation without gradients, which is the least it can cost. Ours is
`train_fold`, standardisation and validation included. One thread, float32 unless said; CPU seconds, which a
busy machine disturbs less than wall time; ours and the peer's runs interleaved, best of the repeats. The area
under the ROC curve on held-out bags stands in the note.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "bags"
REPEATS = 2


@dataclass(frozen=True)
class Work:
    """One set of bags and one model."""

    name: str
    make: Callable[[], dict[str, np.ndarray]]
    epochs: int
    hidden: int
    attention: int
    lr: float = 1e-3


def slide_bags(n: int, low: int, high: int, width: int, seed: int) -> dict[str, np.ndarray]:
    """Bags of tiles like slides: lengths log-uniform; in a positive bag 3 % of the tiles differ."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.uniform(np.log(low), np.log(high), n)).astype(int)
    truth = np.arange(n) % 2
    tiles = generator.standard_normal((int(sizes.sum()), width), dtype=np.float32)
    start = 0
    for size, positive in zip(sizes, truth, strict=True):
        if positive:
            tiles[start : start + max(1, size * 3 // 100), :16] += 2.5
        start += size
    return {"X": tiles, "sizes": sizes, "y": truth, "part": _parts(n)}


def classic_bags(name: str) -> dict[str, np.ndarray]:
    """A published data set of small bags, standardised."""
    held = np.load(SHARED / f"classic_mil_{name}.npz")
    names = np.unique(held["bag_id"])
    rows = [np.flatnonzero(held["bag_id"] == bag) for bag in names]
    tiles = held["X"].astype(np.float32)
    spread = tiles.std(axis=0)
    tiles = (tiles - tiles.mean(axis=0)) / np.where(spread > 1e-6, spread, 1)
    order = np.random.default_rng(0).permutation(len(names))
    return {
        "X": np.concatenate([tiles[rows[i]] for i in order]),
        "sizes": np.array([len(rows[i]) for i in order]),
        "y": (held["bag_label"][order] > 0).astype(int),
        "part": _parts(len(names)),
    }


def _parts(n: int) -> np.ndarray:
    """60 % training, 10 % validation, 30 % test."""
    # In pairs, as bags alternate between the classes: every part has both.
    return np.array([0, 0, 0, 0, 0, 0, 1, 2, 2, 2])[np.arange(n) // 2 * 3 % 10]


def train_ours(
    bags: dict[str, np.ndarray], work: Work, seed: int, **changes: Any
) -> tuple[float, list[float]]:
    """Seconds, and scores of the test bags."""
    from acpbench.mil.bags import PatientBag
    from acpbench.mil.train import MilSettings, predict, train_fold

    edges = np.r_[0, np.cumsum(bags["sizes"])]
    parts: list[list[PatientBag]] = [[], [], []]
    for i, part in enumerate(bags["part"]):
        tiles = bags["X"][edges[i] : edges[i + 1]]
        parts[part].append(PatientBag(f"p{i:04d}", tiles, label=["no", "yes"][bags["y"][i]]))
    settings = MilSettings(
        **{
            "hidden_dim": work.hidden,
            "attention_dim": work.attention,
            "dropout": 0,
            "lr": work.lr,
            "max_epochs": work.epochs,
            "patience": work.epochs,
            "batch_size": 4,
            "bag_size": None,
            "eval_bag_size": None,
            "class_weighting": False,
            "device": "cpu",
            "seed": seed,
        }
        | changes
    )
    start = time.process_time()
    fitted = train_fold(parts[0], parts[1], "binary", ["no", "yes"], settings, cache_mb=4000)
    seconds = time.process_time() - start
    return seconds, [row["prob_yes"] for row in predict(fitted, parts[2]).rows]


def measure() -> list[bench.Row]:
    """One row a work and way."""
    import torch
    from sklearn.metrics import roc_auc_score

    torch.set_num_threads(1)
    works = [
        Work(
            "slide-like bags of 300-4000 tiles x 1024",
            lambda: slide_bags(40, 300, 4000, 1024, 1),
            6,
            256,
            128,
            3e-3,
        ),
        Work("bags of 16,384 tiles x 512", lambda: slide_bags(20, 16384, 16385, 512, 2), 6, 256, 128, 3e-3),
    ]
    if SHARED.is_dir():
        works.insert(0, Work("Elephant (200 bags of 7 x 230)", lambda: classic_bags("elephant"), 50, 64, 32))
    rows = []
    for work in works:
        bags = work.make()
        truth = bags["y"][bags["part"] == 2]
        kinds: dict[str, dict[str, Any]] = {"fp32, whole bags": {}}
        if len(bags["X"]) > 10_000:
            kinds |= {"bf16, whole bags": {"precision": "bf16"}, "fp32, 512 tiles a step": {"bag_size": 512}}
        best: dict[str, float] = {}
        aurocs: dict[str, list[float]] = {}
        missing = ""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bags.npz"
            np.savez(path, **bags)
            for repeat in range(REPEATS):
                for kind, changes in kinds.items():
                    seconds, scores = train_ours(bags, work, repeat, **changes)
                    best[kind] = min(best.get(kind, seconds), seconds)
                    aurocs.setdefault(kind, []).append(float(roc_auc_score(truth, scores)))
                for how, batch in (("trainer", 4), ("loop", 1)):
                    given = [path, how, work.epochs, batch, work.hidden, work.attention, work.lr, repeat]
                    try:
                        found = bench.run_peer("torchmil", "train", *map(str, given))
                    except bench.PeerMissing as error:
                        missing = str(error)
                        continue
                    best[how] = min(best.get(how, found["seconds"]), found["seconds"])
                    score = float(roc_auc_score(found["truth"], found["scores"]))
                    aurocs.setdefault(how, []).append(score)
        for how, peer in (("trainer", "torchmil Trainer"), ("loop", "torchmil plain loop")):
            for kind in kinds:
                note = f"mean held-out AUROC {np.mean(aurocs[kind]):.3f}"
                note += f", peer {np.mean(aurocs[how]):.3f}" if how in aurocs else f"; {missing}"
                rows.append(
                    bench.compare(
                        f"ABMIL training, {work.name}, {work.epochs} epochs, {kind}",
                        best[kind],
                        "s",
                        peer,
                        best.get(how),
                        must_reach=2.0 if how == "trainer" else None,
                        lower_is_better=True,
                        note=note,
                    )
                )
    return rows


if __name__ == "__main__":
    bench.main(measure, __doc__)

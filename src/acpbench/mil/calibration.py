"""Expected calibration error."""

from __future__ import annotations

import numpy as np

N_CALIBRATION_BINS = 10


def calibration_bins(confidence: np.ndarray, n_bins: int = N_CALIBRATION_BINS) -> np.ndarray:
    """Bin of each probability in [0, 1]: [0, 1/n), ..., [1 - 1/n, 1]."""
    return np.minimum((np.asarray(confidence) * n_bins).astype(int), n_bins - 1)


def expected_calibration_error(
    confidence: np.ndarray, hit: np.ndarray, n_bins: int = N_CALIBRATION_BINS
) -> float:
    """Expected calibration error over equal-width bins (Naeini et al., AAAI 2015).

    Args:
        confidence: (N,) predicted probabilities in [0, 1].
        hit: (N,) 0 or 1, whether the event that the probability is for happened.
        n_bins: number of bins.

    Returns:
        Sum over bins of (bin share) x |mean hit - mean confidence|, in [0, 1].
    """
    bins = calibration_bins(confidence, n_bins)
    gap = np.bincount(bins, weights=np.asarray(hit, float) - np.asarray(confidence, float), minlength=n_bins)
    return float(np.abs(gap).sum() / len(bins))

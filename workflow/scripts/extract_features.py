"""Embed one slide's tiles, or take over the features that another tool made of it."""

from contextlib import nullcontext

from acpbench.features.devices import claim_gpu
from acpbench.features.encoders import DeferredEncoder
from acpbench.features.exchange import import_slide
from acpbench.features.extract import extract_slide
from acpbench.features.registry import find_encoder, load_registry
from acpbench.slides.slide_files import local_copy

spec = find_encoder(load_registry(snakemake.input.encoders), snakemake.wildcards.encoder)
if spec.source.kind == "files":
    import_slide(spec, snakemake.input.coords, snakemake.output.features)
else:
    # Not a parameter: another disk is no reason to do the work again.
    cohort = snakemake.config["cohorts"][snakemake.wildcards.cohort]
    on_gpu = bool(snakemake.resources.get("gpu", 0))
    # Before anything starts CUDA: a job sees its own device and no other.
    with claim_gpu() if on_gpu else nullcontext():
        extract_slide(
            local_copy(snakemake.params.path, cohort.get("cache_dir")),
            snakemake.input.coords,
            DeferredEncoder(
                spec, record=snakemake.input.get("weights") or None, device="auto" if on_gpu else "cpu"
            ),
            snakemake.output.features,
        )

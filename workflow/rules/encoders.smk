# The checked rows of the study's encoders, and what each of them needs.
from acpbench.features.exchange import foreign_paths
from acpbench.features.registry import parse_encoder


def encoder_spec(name):
    """The checked row of an encoder."""
    return parse_encoder(name, ENCODERS[name], STUDY.encoders_config)


try:
    SPECS = {name: encoder_spec(name) for name in STUDY.encoders}
except InputError as error:
    raise WorkflowError(str(error))


def weights_record(wildcards):
    """What the prefetching of an encoder's weights recorded; encoders without weights to fetch have none."""
    spec = encoder_spec(wildcards.encoder)
    return f"results/weights/{spec.source.name}.json" if spec.needs_weights else []


def weights_rows(wildcards):
    """Where the weights of a source come from, as the encoders that share it say."""
    rows = [spec for spec in SPECS.values() if spec.source.name == wildcards.weights]
    return canonical([spec.source.model_dump() for spec in rows])


def foreign_file(wildcards):
    """The file that another tool made of a slide, where the encoder stands for such files."""
    spec = encoder_spec(wildcards.encoder)
    if spec.source.kind != "files":
        return []
    return [
        path
        for path in map(str, foreign_paths(spec, wildcards.slide_id))
        if os.path.exists(path)
    ]


def gpus(wildcards):
    """A network with fetched weights asks for a GPU; the small ones that come along run on a CPU core."""
    return int(encoder_spec(wildcards.encoder).needs_weights)

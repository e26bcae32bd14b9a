"""The encoder registry: one checked row for each encoder and output variant."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_yaml, sha256_json
from acpbench.core.ids import check_id

SPACING_TOLERANCE = 0.05
"""Relative difference up to which a tile's spacing counts as the one the encoder was trained at."""

_SAME_FEATURE = {"licence": True, "gated": True, "verified": True, "note": True}
"""Fields that say something about a row and change no feature."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderSource(_Strict):
    """Where the weights come from. What they are is decided by their hash, not by this block."""

    kind: Literal["builtin", "package", "hub", "local", "files"]
    ref: str = Field(min_length=1, description="Built-in name, package, hub repository, or folder.")
    file: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*$", description="File in the repository."
    )
    revision: str | None = Field(None, description="Commit of the repository; default: its newest.")
    folder: str | None = Field(None, description="File or folder here that holds the weights.")
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="Refuse any other weights.")

    @property
    def name(self) -> str:
        """``owner/model`` → ``owner--model``: one file name for all encoders that share these weights."""
        return self.ref.replace("/", "--")


class TimmModel(_Strict):
    """How timm builds the network: architecture name and keyword arguments of ``create_model``.

    ``unused`` lists beginnings of names in the checkpoint that belong to no part of this network.
    """

    architecture: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    unused: list[str] = Field(default_factory=list)


class EncoderSpec(_Strict):
    """One encoder: everything that changes a feature, its licence, and whether it was ever run here."""

    id: str
    source: EncoderSource
    licence: str
    gated: bool
    variant: Literal["stats", "pooled", "cls", "cls_mean", "map_mean"]
    dim: int = Field(gt=0)
    input_size_px: int | None = Field(gt=0)
    spacing_um: list[float]
    mean: list[float] | None = Field(min_length=3, max_length=3)
    std: list[float] | None = Field(min_length=3, max_length=3)
    interpolation: Literal["bilinear", "bicubic"] | None
    accepts_resize: bool = False
    compute_dtype: Literal["float32", "float16", "bfloat16"]
    stored_dtype: Literal["float32", "float16"]
    layout: Literal[
        "timm", "hf_vit", "hf_dinov2", "dinov2", "ctranspath", "conch", "conch_v1_5", "keep", "musk"
    ] = "timm"
    timm: TimmModel | None = None
    verified: bool
    note: str = ""

    @model_validator(mode="after")
    def _complete(self) -> EncoderSpec:
        check_id(self.id, "encoder")
        network = (self.input_size_px, self.mean, self.std, self.interpolation)
        if self.source.kind not in ("builtin", "files") and None in network:
            raise ValueError("a network needs input_size_px, mean, std and interpolation")
        if (self.source.kind in ("hub", "local")) != (self.timm is not None):
            raise ValueError("a hub or local source needs its timm block, and no other source has one")
        return self

    @property
    def needs_weights(self) -> bool:
        """Whether weights have to be fetched or laid down before the encoder runs."""
        return self.source.kind in ("hub", "local")

    def settings_sha256(self) -> str:
        """Hash of what changes a feature, the variant among it.

        Licence, note, ``verified`` and where the weights lie do not; the weights' own hash is taken apart.
        """
        elsewhere = {"file": True, "revision": True, "folder": True, "sha256": True}
        return sha256_json(self.model_dump(exclude={**_SAME_FEATURE, "source": elsewhere}))

    def check_tiles(
        self,
        *,
        spacing_um: float,
        tile_size_px: int,
        allow_any_spacing: bool = False,
        allow_resize: bool = False,
    ) -> None:
        """Refuse tiles that the encoder was not made for.

        Args:
            spacing_um: effective spacing of the tiles, um/px.
            tile_size_px: side of the tiles, px.
            allow_any_spacing: accept a spacing that is not in the row.
            allow_resize: accept another size and resize to ``input_size_px``.

        Raises:
            InputError: naming the encoder, what it takes and the option that would allow it.
        """
        near = [s for s in self.spacing_um if abs(spacing_um - s) <= SPACING_TOLERANCE * s]
        if self.spacing_um and not near and not allow_any_spacing:
            raise InputError(
                f"encoder {self.id} takes {' or '.join(map(str, self.spacing_um))} um/px, the tiles have "
                f"{spacing_um:.4g}; tile again or set allow_any_spacing",
                field="spacing_um",
            )
        wanted = self.input_size_px
        if wanted is not None and tile_size_px != wanted and not (self.accepts_resize or allow_resize):
            raise InputError(
                f"encoder {self.id} takes {wanted} px, the tiles have {tile_size_px}; "
                "tile again or set allow_resize",
                field="tile_size_px",
            )


def load_registry(path: str | os.PathLike[str]) -> dict[str, EncoderSpec]:
    """Read ``encoders.yaml`` (id → row).

    Raises:
        InputError: not a mapping, or the first row that does not validate, by field.
    """
    rows = read_yaml(path)
    if not isinstance(rows, dict) or not rows:
        raise InputError("expected a mapping of encoder id to its row", file=path)
    registry = {}
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise InputError("expected a mapping", file=path, field=str(name))
        registry[str(name)] = parse_encoder(str(name), row, path)
    return registry


def parse_encoder(name: str, row: dict[str, Any], file: object = None) -> EncoderSpec:
    """Check one row. Raises :class:`InputError` naming file and field."""
    try:
        return EncoderSpec(id=name, **row)
    except ValidationError as error:
        found = describe_validation(error, file)
        raise InputError(found.message, file=file, field=f"{name}.{found.field}") from None


def find_encoder(registry: dict[str, EncoderSpec], name: str) -> EncoderSpec:
    """Return the row of ``name``.

    Raises:
        InputError: no such id. A model with several output variants has an id for each (``virchow2`` alone
            would be 1280 numbers to one reader and 2560 to another); those are named.
    """
    if name in registry:
        return registry[name]
    variants = [known for known in registry if known.startswith(name + "_")]
    if variants:
        raise InputError(f"encoder {name!r} is one of {', '.join(variants)}; name the one", field="encoder")
    raise InputError(
        f"encoder {name!r} is not in the registry; known: {', '.join(registry)}", field="encoder"
    )

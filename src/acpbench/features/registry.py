"""The encoder registry: one checked row for each tile encoder."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_yaml, sha256_json
from acpbench.core.ids import check_id

SPACING_TOLERANCE = 0.05
"""Relative difference up to which a tile's spacing counts as the one the encoder was trained at."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderSource(_Strict):
    """Where the weights come from; ``ref`` is a package, a hub repository or a built-in name."""

    kind: Literal["builtin", "package", "timm"]
    ref: str


class TimmModel(_Strict):
    """How timm builds the network: architecture name and keyword arguments of ``create_model``."""

    architecture: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


class EncoderSpec(_Strict):
    """One encoder: everything that changes a feature, its licence, and whether it was ever run here."""

    id: str
    source: EncoderSource
    licence: str
    gated: bool
    variant: Literal["stats", "pooled", "cls", "cls_mean"]
    dim: int = Field(gt=0)
    input_size_px: int | None = Field(gt=0)
    spacing_um: list[float]
    mean: list[float] | None = Field(min_length=3, max_length=3)
    std: list[float] | None = Field(min_length=3, max_length=3)
    interpolation: Literal["bilinear", "bicubic"] | None
    accepts_resize: bool = False
    compute_dtype: Literal["float32", "float16", "bfloat16"]
    stored_dtype: Literal["float32", "float16"]
    timm: TimmModel | None = None
    verified: bool
    note: str = ""

    @model_validator(mode="after")
    def _complete(self) -> EncoderSpec:
        check_id(self.id, "encoder")
        if self.source.kind != "builtin" and None in (
            self.input_size_px,
            self.mean,
            self.std,
            self.interpolation,
        ):
            raise ValueError("a network needs input_size_px, mean, std and interpolation")
        if (self.source.kind == "timm") != (self.timm is not None):
            raise ValueError("a timm source needs its timm block, and no other source has one")
        return self

    def settings_sha256(self) -> str:
        """Hash of what changes a feature; licence, note and ``verified`` do not."""
        return sha256_json(self.model_dump(exclude={"licence", "gated", "verified", "note"}))

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
        try:
            registry[str(name)] = EncoderSpec(id=str(name), **row)
        except ValidationError as error:
            found = describe_validation(error, path)
            raise InputError(found.message, file=path, field=f"{name}.{found.field}") from None
    return registry


def find_encoder(registry: dict[str, EncoderSpec], name: str) -> EncoderSpec:
    """Return the row of ``name``. Raises :class:`InputError` listing the known ids."""
    if name not in registry:
        raise InputError(
            f"encoder {name!r} is not in the registry; known: {', '.join(registry)}", field="encoder"
        )
    return registry[name]

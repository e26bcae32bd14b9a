"""Typed arguments of the pathology tools. Units stand in the names."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from acpbench.harness.registry import ToolArgs

OUTPUT_DIR = r"^(outputs/round_0|reflection/round_[1-5])$"


class InspectSlides(ToolArgs):
    """Arguments of ``inspect_slides``."""

    output_dir: str = Field("outputs/round_0", pattern=OUTPUT_DIR, description="Folder of the round.")


class TileSlides(ToolArgs):
    """Arguments of ``tile_slides``."""

    spacing_um: float = Field(gt=0, le=20, description="Target spacing in micrometres per pixel.")
    tile_size_px: int = Field(ge=32, le=4096, description="Tile side in pixels at that spacing.")
    min_tissue: float = Field(0.5, ge=0, le=1, description="Smallest tissue share of a kept tile.")
    output_dir: str = Field("outputs/round_0", pattern=OUTPUT_DIR, description="Folder of the round.")


class ExtractFeatures(TileSlides):
    """Arguments of ``extract_features``: the grid again, and the encoder."""

    encoder: str = Field(description="Name of an encoder in the registry of encoders.")


class TrainMil(ToolArgs):
    """Arguments of ``train_mil``."""

    input_fields: ClassVar[tuple[str, ...]] = ("features_index",)

    features_index: str = Field(description="features_index.csv of the features to train on.")
    output_dir: str = Field("outputs/round_0", pattern=OUTPUT_DIR, description="Folder of the round.")
    aggregator: Literal["gated_abmil", "abmil", "mean"] = "gated_abmil"
    hidden_dim: int = Field(64, ge=4, le=1024)
    attention_dim: int = Field(32, ge=2, le=512)
    dropout: float = Field(0.25, ge=0, lt=1)
    lr: float = Field(1e-3, gt=0, le=1)
    weight_decay: float = Field(1e-2, ge=0, le=1)
    max_epochs: int = Field(40, ge=1, le=500)
    patience: int = Field(10, ge=1, le=500)
    seed: int = 0


class EvaluatePredictions(ToolArgs):
    """Arguments of ``evaluate_predictions``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions",)

    predictions: str = Field(description="Predictions table of the workspace.")
    output: str = Field(
        description="Where to write metrics.json.", pattern=r"^(outputs|reflection)/.*\.json$"
    )
    round_id: int = Field(0, ge=0, le=5)


class EvaluateTest(ToolArgs):
    """Arguments of ``evaluate_test``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions",)

    predictions: str = Field(description="Predictions table holding rows of the test patients.")


class RenderAttention(ToolArgs):
    """Arguments of ``render_attention``."""

    input_fields: ClassVar[tuple[str, ...]] = ("model", "features_index")

    model: str = Field(description="model.pt of a round.")
    features_index: str = Field(description="features_index.csv the model was trained on.")
    slide_id: str
    output_dir: str = Field("outputs/round_0", pattern=OUTPUT_DIR, description="Folder of the round.")


class ReadTable(ToolArgs):
    """Arguments of ``read_table``."""

    input_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    n_rows: int = Field(5, ge=0, le=50)


class ValidateDocument(ToolArgs):
    """Arguments of ``validate_spec`` and ``validate_report``."""

    input_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str

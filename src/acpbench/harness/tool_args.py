"""Typed arguments of the pathology tools. Units stand in the names."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from acpbench.harness.tool_base import ToolArgs
from acpbench.trajectory.documents import DocumentName

OUTPUT_DIR = r"^(outputs/round_0|reflection/round_[1-5])$"
JSON_OUTPUT = r"^(outputs|reflection)/.*\.json$"
CSV_OUTPUT = r"^(outputs|reflection)/.*\.csv$"
MAX_REGION_PX = 2048


class _IntoRound(ToolArgs):
    """Arguments of a tool that writes into a round's folder."""

    output_dir: str = Field("outputs/round_0", pattern=OUTPUT_DIR, description="Folder of the round.")


class InspectSlides(_IntoRound):
    """Arguments of ``inspect_slides``."""


class ReportQuality(_IntoRound):
    """Arguments of ``report_quality``: limits above which a slide is named."""

    max_pen_fraction: float = Field(0.05, ge=0, le=1, description="Share of the slide under pen.")
    max_blur_fraction: float = Field(0.3, ge=0, le=1, description="Share of sampled tissue tiles.")
    max_fold_fraction: float = Field(0.1, ge=0, le=1, description="Share of the tissue.")
    max_unreadable_fraction: float = Field(0.01, ge=0, le=1, description="Share of the slide.")


class ReadRegion(_IntoRound):
    """Arguments of ``read_region``."""

    slide_id: str
    x_level0: int = Field(ge=0, description="Left edge in level-0 pixels.")
    y_level0: int = Field(ge=0, description="Top edge in level-0 pixels.")
    spacing_um: float = Field(gt=0, le=64, description="Spacing of the crop in micrometres per pixel.")
    width_px: int = Field(512, ge=16, le=MAX_REGION_PX, description="Width of the crop in its own pixels.")
    height_px: int = Field(512, ge=16, le=MAX_REGION_PX, description="Height of the crop in its own pixels.")
    format: Literal["png", "jpeg"] = "png"


class SegmentTissue(_IntoRound):
    """Arguments of ``segment_tissue``."""

    slide_id: str
    min_piece_mm2: float = Field(0.01, ge=0.01, le=100, description="Smaller pieces are left out.")


class SegmentNuclei(_IntoRound):
    """Arguments of ``segment_nuclei``: one region, or tiles sampled from the study's grid."""

    slide_id: str
    x_level0: int | None = Field(None, ge=0, description="Left edge in level-0 pixels; null to sample tiles.")
    y_level0: int | None = Field(None, ge=0, description="Top edge in level-0 pixels; null to sample tiles.")
    width_px: int = Field(1024, ge=64, le=MAX_REGION_PX, description="Width of the one region.")
    height_px: int = Field(1024, ge=64, le=MAX_REGION_PX, description="Height of the one region.")
    n_tiles: int = Field(8, ge=1, le=64, description="Tiles sampled, evenly over the slide's tile list.")
    spacing_um: float = Field(0.5, ge=0.1, le=1.0, description="Spacing worked at, micrometres per pixel.")
    min_area_um2: float = Field(12.0, ge=1, le=1000, description="Smaller objects are no nuclei.")
    max_area_um2: float = Field(400.0, ge=1, le=10_000, description="Larger objects are no single nuclei.")

    @model_validator(mode="after")
    def _whole(self) -> SegmentNuclei:
        if (self.x_level0 is None) != (self.y_level0 is None):
            raise ValueError("give both x_level0 and y_level0 for one region, or neither to sample tiles")
        if self.min_area_um2 >= self.max_area_um2:
            raise ValueError("min_area_um2 must be below max_area_um2")
        return self


class TileSlides(_IntoRound):
    """Arguments of ``tile_slides``."""

    spacing_um: float = Field(gt=0, le=20, description="Target spacing in micrometres per pixel.")
    tile_size_px: int = Field(ge=32, le=4096, description="Tile side in pixels at that spacing.")
    min_tissue: float = Field(0.5, ge=0, le=1, description="Smallest tissue share of a kept tile.")


class ExtractFeatures(TileSlides):
    """Arguments of ``extract_features``: the grid again, and the encoder."""

    encoder: str = Field(description="Name of an encoder in the registry of encoders.")


class TrainMil(_IntoRound):
    """Arguments of ``train_mil``."""

    input_fields: ClassVar[tuple[str, ...]] = ("features_index",)

    features_index: str = Field(description="features_index.csv of the features to train on.")
    aggregator: Literal["gated_abmil", "abmil", "mean"] = "gated_abmil"
    hidden_dim: int = Field(64, ge=4, le=1024)
    attention_dim: int = Field(32, ge=2, le=512)
    dropout: float = Field(0.25, ge=0, lt=1)
    lr: float = Field(1e-3, gt=0, le=1)
    weight_decay: float = Field(1e-2, ge=0, le=1)
    max_epochs: int = Field(40, ge=1, le=500)
    patience: int = Field(10, ge=1, le=500)
    batch_size: int = Field(8, ge=1, le=256, description="Patients a step; survival always uses all.")
    bag_size: int | None = Field(
        512, ge=1, le=100_000, description="Tiles drawn from a patient in each step; null for all."
    )
    class_weighting: bool = Field(True, description="Whether rare classes weigh as much as common ones.")
    seed: int = Field(0, ge=0, lt=2**31)


class PredictMil(ToolArgs):
    """Arguments of ``predict_mil``."""

    input_fields: ClassVar[tuple[str, ...]] = ("model", "features_index")

    model: str = Field(description="model.pt that train_mil wrote.")
    features_index: str = Field(description="features_index.csv with features of the model's encoder.")
    output: str = Field(pattern=CSV_OUTPUT, description="Where to write the predictions table.")
    splits: list[Literal["train", "validation", "test"]] = Field(
        ["validation", "test"], min_length=1, max_length=3, description="Patients to predict, by split."
    )


class EvaluatePredictions(ToolArgs):
    """Arguments of ``evaluate_predictions``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions",)

    predictions: str = Field(description="Predictions table of the workspace.")
    output: str = Field(description="Where to write metrics.json.", pattern=JSON_OUTPUT)
    round_id: int = Field(0, ge=0, le=5, description="Round that the predictions belong to.")


class AssessCalibration(ToolArgs):
    """Arguments of ``assess_calibration``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions",)

    predictions: str = Field(description="Predictions table of the workspace, with probabilities.")
    output: str = Field(description="Where to write the calibration document.", pattern=JSON_OUTPUT)


class ComparePredictions(ToolArgs):
    """Arguments of ``compare_predictions``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions_a", "predictions_b")

    predictions_a: str = Field(description="Predictions table taken as the reference.")
    predictions_b: str = Field(description="Predictions table compared with it.")
    output: str = Field(description="Where to write the comparison.", pattern=JSON_OUTPUT)
    metric: str | None = Field(None, description="Metric compared; null for the task's primary metric.")
    n_resamples: int = Field(1000, ge=100, le=5000, description="Paired bootstrap resamples.")
    seed: int = Field(0, ge=0, lt=2**31)


class EvaluateTest(ToolArgs):
    """Arguments of ``evaluate_test``."""

    input_fields: ClassVar[tuple[str, ...]] = ("predictions",)

    predictions: str = Field(description="Predictions table holding rows of the test patients.")


class RenderAttention(_IntoRound):
    """Arguments of ``render_attention``."""

    input_fields: ClassVar[tuple[str, ...]] = ("model", "features_index")

    model: str = Field(description="model.pt of a round.")
    features_index: str = Field(description="features_index.csv the model was trained on.")
    slide_id: str


class CaptionRegion(_IntoRound):
    """Arguments of ``caption_region``. Model and address are the study's, not the caller's."""

    input_fields: ClassVar[tuple[str, ...]] = ("image",)

    image: str = Field(description="PNG or JPEG of the workspace, such as read_region writes.")
    question: str = Field("", max_length=500, description="What to look for; empty for a plain description.")


class ReadTable(ToolArgs):
    """Arguments of ``read_table``."""

    input_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    n_rows: int = Field(5, ge=0, le=50)


class ValidateSpec(ToolArgs):
    """Arguments of ``validate_spec``."""

    input_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str


class ValidateReport(ValidateSpec):
    """Arguments of ``validate_report``."""


class ValidateSchema(ValidateSpec):
    """Arguments of ``validate_schema``."""

    schema_name: DocumentName = Field(description="Name of a file of schemas/, without .schema.json.")

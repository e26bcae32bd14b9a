"""Typed results of the pathology tools. Units stand in the names; what could not be measured is null."""

from __future__ import annotations

from pydantic import Field

from acpbench.harness.tool_base import ToolResult

Metrics = dict[str, float | None]
Intervals = dict[str, list[float | None] | None]


class InspectSlidesResult(ToolResult):
    """Answer of ``inspect_slides``."""

    n_slides: int
    n_ok: int
    n_dropped: int
    dropped: dict[str, str] = Field(description="Slide → reason; the first 50, all are in the manifest.")
    mean_fractions: dict[str, float] = Field(description="Class of the quality record → mean over slides.")


class FractionSummary(ToolResult):
    """One class of the quality record over the slides that have it."""

    of: str = Field(description="What the fraction is a share of.")
    n_slides: int
    mean: float
    median: float
    maximum: float
    maximum_slide_id: str


class ReportQualityResult(ToolResult):
    """Answer of ``report_quality``."""

    n_slides: int
    tissue_area_mm2_median: float | None
    fractions: dict[str, FractionSummary]
    n_above_limits: int
    above_limits: dict[str, list[str]] = Field(description="Slide → what exceeds its limit; the first 50.")


class ReadRegionResult(ToolResult):
    """Answer of ``read_region``."""

    slide_id: str
    x_level0: int
    y_level0: int
    width_px: int
    height_px: int
    width_level0: float
    height_level0: float
    spacing_x_um: float
    spacing_y_um: float
    level: int
    mean_saturation: float = Field(description="0..1; empty glass is below about 0.05.")


class SegmentTissueResult(ToolResult):
    """Answer of ``segment_tissue``."""

    slide_id: str
    tissue_fraction: float
    tissue_area_mm2: float
    n_pieces: int
    largest_piece_mm2: float
    mask_spacing_um: float
    glass_found: bool = Field(description="False: no empty glass was told apart, the mask may be too wide.")


class NucleusAreas(ToolResult):
    """Areas of the nuclei that touch no border."""

    n: int
    mean_um2: float | None
    sd_um2: float | None
    p5_um2: float | None
    median_um2: float | None
    p95_um2: float | None


class SegmentNucleiResult(ToolResult):
    """Answer of ``segment_nuclei``."""

    slide_id: str
    n_regions: int
    n_regions_failed: int
    n_nuclei: int
    region_area_mm2: float
    tissue_area_mm2: float = Field(description="Part of the regions that is tissue.")
    density_per_mm2: float | None = Field(description="Nuclei per mm2 of tissue in the regions.")
    area: NucleusAreas
    spacing_um: float
    method: str


class TileSlidesResult(ToolResult):
    """Answer of ``tile_slides``."""

    n_slides: int
    n_with_tiles: int
    n_tiles: int


class ExtractFeaturesResult(ToolResult):
    """Answer of ``extract_features``."""

    encoder: str
    dimension: int
    n_slides: int
    n_tiles: int


class Dropped(ToolResult):
    """A slide, or a patient (empty ``slide_id``), that takes no part, and why."""

    patient_id: str
    slide_id: str
    reason: str


class TrainMilResult(ToolResult):
    """Answer of ``train_mil``. Numbers are patients."""

    config_sha256: str
    n_train: int
    n_inner_validation: int
    n_validation: int
    n_test: int
    best_epoch: int
    n_epochs: int
    n_dropped: int
    dropped: list[Dropped] = Field(description="The first 50.")


class PredictMilResult(ToolResult):
    """Answer of ``predict_mil``. Numbers are patients."""

    n_patients: int
    n_by_split: dict[str, int]
    encoder: str
    n_dropped: int
    dropped: list[Dropped] = Field(description="The first 50.")


class EvaluatePredictionsResult(ToolResult):
    """Answer of ``evaluate_predictions``."""

    metrics: Metrics
    n: int
    notes: dict[str, str] = Field(description="Metric → why it is null.")


class ReliabilityBin(ToolResult):
    """One bin of the reliability table."""

    bin_low: float
    bin_high: float
    n: int
    mean_probability: float | None
    observed: float | None = Field(description="Share in which it happened, with its 95 % Wilson interval.")
    observed_low: float | None
    observed_high: float | None


class AssessCalibrationResult(ToolResult):
    """Answer of ``assess_calibration``."""

    event: str = Field(description="What the probabilities are of.")
    n: int
    prevalence: float
    mean_confidence: float
    metrics: Metrics = Field(description="ECE and brier.")
    intervals: Intervals
    slope: float | None = Field(description="Of the logistic recalibration; 1 is ideal, below 1 too extreme.")
    intercept: float | None = Field(description="Of the logistic recalibration; 0 is ideal.")
    notes: dict[str, str]
    bins: list[ReliabilityBin]


class ComparePredictionsResult(ToolResult):
    """Answer of ``compare_predictions``. ``difference`` is b minus a."""

    metric: str
    higher_is_better: bool
    n: int = Field(description="Patients that both tables have.")
    n_left_out: int = Field(description="Patients that one table has.")
    value_a: float | None
    value_b: float | None
    difference: float | None
    interval: list[float] | None = Field(description="95 % paired percentile interval of the difference.")
    p: float | None = Field(description="Two-sided, of the paired bootstrap.")
    delong_p: float | None = Field(description="DeLong's test, for AUROC of a binary endpoint.")
    n_resamples: int
    method: str
    statement: str
    note: str


class EvaluateTestResult(ToolResult):
    """Answer of ``evaluate_test``: the receipt."""

    receipt_id: str
    predictions: str
    predictions_sha256: str
    split: str
    n: int
    metrics: Metrics
    intervals: Intervals
    notes: dict[str, str]


class RenderAttentionResult(ToolResult):
    """Answer of ``render_attention``."""

    slide_id: str
    n_tiles: int


class CaptionRegionResult(ToolResult):
    """Answer of ``caption_region``."""

    caption: str = Field(description="The model's own words; not checked by anybody.")
    model: str
    prompt_sha256: str
    image_sha256: str
    input_tokens: int | None
    output_tokens: int | None


class Column(ToolResult):
    """One column of a table; minimum and maximum where every filled cell is a number."""

    missing: int
    distinct: int
    min: float | None = None
    max: float | None = None


class ReadTableResult(ToolResult):
    """Answer of ``read_table``."""

    n_rows: int
    columns: dict[str, Column]
    head: list[dict[str, str]]


class ValidateSchemaResult(ToolResult):
    """Answer of ``validate_schema``."""

    valid: bool
    schema_name: str
    n_records: int = Field(description="Rows of a table, lines of a JSON Lines file, else 1.")


class ValidateSpecResult(ToolResult):
    """Answer of ``validate_spec``."""

    valid: bool
    n_steps: int


class ValidateReportResult(ToolResult):
    """Answer of ``validate_report``."""

    valid: bool
    n_claims: int
    n_files_cited: int

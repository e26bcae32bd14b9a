"""The tools themselves: the built-in ones and those of plug-ins. Names, roles and references only."""

from __future__ import annotations

from importlib.metadata import entry_points

from acpbench.core.errors import InputError
from acpbench.core.ids import check_id
from acpbench.harness.tool_base import PLUGIN_GROUP, Tool
from acpbench.trajectory.documents import Role

_COHORT = ("labels", "slides_csv")


def _tool(
    id: str,
    role: Role,
    module: str,
    model: str,
    description: str,
    *,
    read_only: bool = False,
    reads: tuple[str, ...] = (),
) -> Tool:
    """One built-in tool: arguments ``tool_args:<model>``, result ``tool_results:<model>Result``."""
    harness = "acpbench.harness"
    return Tool(
        id,
        role,
        read_only,
        f"{harness}.{module}:{id}",
        f"{harness}.tool_args:{model}",
        f"{harness}.tool_results:{model}Result",
        description,
        reads,
    )


BUILT_IN: tuple[Tool, ...] = (
    _tool(
        "inspect_slides",
        "slide_processing",
        "slide_tools",
        "InspectSlides",
        "Open every slide of the cohort, report spacing, size, tissue and quality status, and write "
        "slide_manifest.csv with a keep or drop reason for each slide.",
        reads=(*_COHORT, "exclusions_csv"),
    ),
    _tool(
        "report_quality",
        "slide_processing",
        "slide_tools",
        "ReportQuality",
        "List tissue area and the fractions of pen, blur, folds and unreadable parts of every slide, write "
        "quality_report.csv and name the slides above the limits you give.",
        reads=_COHORT,
    ),
    _tool(
        "read_region",
        "slide_processing",
        "region_tools",
        "ReadRegion",
        "Crop a region of a slide at a spacing (micrometres per pixel) and write it as PNG or JPEG. Only the "
        "tissue image is read, never the label or macro image.",
        reads=_COHORT,
    ),
    _tool(
        "segment_tissue",
        "slide_processing",
        "segmentation_tools",
        "SegmentTissue",
        "Outline the tissue of one slide: area in mm2, number of pieces, polygons as GeoJSON.",
        reads=_COHORT,
    ),
    _tool(
        "segment_nuclei",
        "slide_processing",
        "segmentation_tools",
        "SegmentNuclei",
        "Segment nuclei in one region or in sampled tiles of a slide by colour deconvolution and watershed: "
        "counts, density per mm2, areas in um2, a table and an overlay. Classical, not a trained model.",
        reads=_COHORT,
    ),
    _tool(
        "tile_slides",
        "slide_processing",
        "slide_tools",
        "TileSlides",
        "Lay a tile grid of a given spacing (micrometres per pixel) and size over the tissue of every usable "
        "slide and write tiles_index.csv.",
        reads=_COHORT,
    ),
    _tool(
        "extract_features",
        "feature_extraction",
        "slide_tools",
        "ExtractFeatures",
        "Embed the tiles of every usable slide with a registered encoder and write features_index.csv.",
        reads=(*_COHORT, "encoders_config"),
    ),
    _tool(
        "train_mil",
        "model",
        "model_tools",
        "TrainMil",
        "Train an attention-based multiple-instance model on the training patients (early stopping on an "
        "inner part of them) and write config.yaml, model.pt, splits.csv, history.csv and predictions.csv "
        "for validation and test patients.",
        reads=(*_COHORT, "task_file"),
    ),
    _tool(
        "predict_mil",
        "model",
        "model_tools",
        "PredictMil",
        "Predict patients with a model that train_mil saved, on the features it was trained on, and write a "
        "predictions table.",
        reads=(*_COHORT, "task_file"),
    ),
    _tool(
        "evaluate_predictions",
        "evaluation",
        "evaluation_tools",
        "EvaluatePredictions",
        "Compute the task's metrics with patient-level bootstrap intervals on the validation rows of a "
        "predictions table and write metrics.json.",
        reads=("labels", "task_file"),
    ),
    _tool(
        "assess_calibration",
        "evaluation",
        "calibration_tools",
        "AssessCalibration",
        "Check on validation patients whether predicted probabilities are right on average: reliability "
        "bins, ECE and Brier score with intervals, calibration slope and intercept of a binary endpoint.",
        reads=("labels", "task_file"),
    ),
    _tool(
        "compare_predictions",
        "evaluation",
        "calibration_tools",
        "ComparePredictions",
        "Compare two predictions tables on the validation patients they share: difference of a metric with a "
        "paired patient-level bootstrap interval and p value.",
        reads=("labels", "task_file"),
    ),
    _tool(
        "evaluate_test",
        "evaluation",
        "evaluation_tools",
        "EvaluateTest",
        "Ask the evaluator for the test metrics of a predictions table. Answers with metrics and a receipt, "
        "never with labels; the number of calls is limited.",
        read_only=True,
        reads=("labels", "task_file"),
    ),
    _tool(
        "render_attention",
        "report",
        "model_tools",
        "RenderAttention",
        "Draw a trained model's attention over one slide's thumbnail.",
        reads=_COHORT,
    ),
    _tool(
        "caption_region",
        "report",
        "caption_tools",
        "CaptionRegion",
        "Describe a picture that read_region wrote with the study's vision-language model, when one is "
        "configured. A caption is a model's text, not a finding.",
    ),
    _tool(
        "read_table",
        "verification",
        "document_tools",
        "ReadTable",
        "Summarise a CSV table of the workspace: rows, columns, missing values, ranges, first rows.",
        read_only=True,
    ),
    _tool(
        "validate_schema",
        "verification",
        "document_tools",
        "ValidateSchema",
        "Check a document or table of the workspace against one of schemas/ and list what does not fit.",
        read_only=True,
    ),
    _tool(
        "validate_spec",
        "verification",
        "document_tools",
        "ValidateSpec",
        "Check a workflow specification: schema, tool ids, graph.",
        read_only=True,
    ),
    _tool(
        "validate_report",
        "report",
        "document_tools",
        "ValidateReport",
        "Check a structured report: schema, that each cited file exists, that the headline equals its file.",
        read_only=True,
        reads=("task_file",),
    ),
)


def plugin_tools(taken: set[str]) -> list[Tool]:
    """Tools of installed plug-ins, sorted by id.

    Raises:
        InputError: a plug-in does not load, gives something else than tools, or an id that is taken.
    """
    found: list[Tool] = []
    for point in entry_points(group=PLUGIN_GROUP):
        where = f"plug-in {point.name} ({point.value})"
        try:
            given = point.load()
            tools = [given] if isinstance(given, Tool) else list(given())
        except Exception as error:  # a plug-in is other people's code
            raise InputError(f"does not load ({type(error).__name__}: {error})", file=where) from error
        for tool in tools:
            if not isinstance(tool, Tool):
                raise InputError(f"gave {tool!r:.80}; expected a Tool", file=where)
            check_id(tool.id, where)
            if tool.id in taken:
                raise InputError(f"tool {tool.id!r} exists already", file=where)
            taken.add(tool.id)
            found.append(tool)
    return sorted(found, key=lambda tool: tool.id)


def all_tools() -> dict[str, Tool]:
    """Every tool by its id: built-in ones in the order of a workflow, then plug-ins."""
    table = {tool.id: tool for tool in BUILT_IN}
    return table | {tool.id: tool for tool in plugin_tools(set(table))}

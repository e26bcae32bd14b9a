"""Region tool: a crop of a slide at a spacing, as a picture in the workspace."""

from __future__ import annotations

from acpbench.core.files import atomic_path
from acpbench.harness.context import RunContext
from acpbench.harness.slide_access import open_cohort_slide, read_slide_region
from acpbench.harness.tool_args import ReadRegion
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import ReadRegionResult

JPEG_QUALITY = 90


def read_region(context: RunContext, args: ReadRegion) -> ToolOutcome:
    """Read a rectangle of the slide's tissue image and write it.

    The label and macro images of a slide file can name the patient; nothing here reads them.
    """
    from PIL import Image

    from acpbench.slides.tissue import hsv

    with open_cohort_slide(context, args.slide_id) as reader:
        region = read_slide_region(
            reader, args.x_level0, args.y_level0, args.spacing_um, args.width_px, args.height_px
        )
    suffix = "png" if args.format == "png" else "jpg"
    place = f"x{args.x_level0}_y{args.y_level0}_{args.spacing_um:g}um_{args.width_px}x{args.height_px}"
    output = f"{args.output_dir}/regions/{args.slide_id}_{place}.{suffix}"
    with atomic_path(context.write_path(output)) as temporary:
        options = {"quality": JPEG_QUALITY} if suffix == "jpg" else {}
        Image.fromarray(region.rgb).save(temporary, format=args.format.upper(), **options)
    result = ReadRegionResult(
        slide_id=args.slide_id,
        x_level0=args.x_level0,
        y_level0=args.y_level0,
        width_px=args.width_px,
        height_px=args.height_px,
        width_level0=region.width_level0,
        height_level0=region.height_level0,
        spacing_x_um=region.spacing_x_um,
        spacing_y_um=region.spacing_y_um,
        level=region.level,
        mean_saturation=round(float(hsv(region.rgb)[..., 1].mean()), 4),
    )
    return ToolOutcome([output], result)

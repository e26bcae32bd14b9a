"""A small cohort of drawn slides with everything the evaluator keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acpbench.harness.context import TilerSettings
from acpbench.slides.inspect import inspect_slide_to_files
from acpbench.slides.synthetic import draw_slide
from acpbench.slides.tiling import TilingSettings, tile_slide_to_files
from tests.harness.build import Side

STUDY_GRID = {"spacing_um": 0.5, "tile_size_px": 224, "min_tissue": 0.35}
"""Not the grid of the policies: a run's tools tile slides and extract features, and find nothing done."""


class SlideSide(Side):
    """The evaluator's side with slides that tools can open."""

    def _slide(self, index: int, row: dict[str, Any]) -> None:
        slide_id = row["slide_id"]
        file = self.files / f"{slide_id}.svs"
        draw_slide(
            {
                "slide_id": slide_id,
                "seed": 4000 + index,
                "pleomorphism": row["label"],
                "gland_grade": "moderate",
                "defect": "none",
            },
            file,
        )
        folder = self.slides_dir / slide_id
        inspect_slide_to_files(file, folder, slide_id=slide_id)
        tile_slide_to_files(file, folder / "coords.h5", TilingSettings(**STUDY_GRID), slide_id=slide_id)

    @property
    def files(self) -> Path:
        """Folder of the slide files."""
        return self.root / "evaluator" / "files"

    def evaluator_fields(self, **changes: Any) -> dict[str, Any]:
        """Fields of ``EvaluatorSide``."""
        return super().evaluator_fields(**{"tiler": TilerSettings(**STUDY_GRID)} | changes)

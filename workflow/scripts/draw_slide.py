"""Draw one generated slide from its manifest row."""

import json

from acpbench.slides.synthetic import draw_slide

draw_slide(json.loads(snakemake.params.row), snakemake.output[0])

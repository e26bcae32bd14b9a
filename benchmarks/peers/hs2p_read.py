"""hs2p: tiles of level 0 as RGB arrays, with the backend named by the fifth argument."""

import sys

import numpy as np
from hs2p.wsi.reader import open_slide
from tile_loop import measure


def open_reader(path):
    slide = open_slide(path, backend=sys.argv[5])
    return lambda x, y, side: np.asarray(slide.read_region((x, y), 0, (side, side)))


measure(open_reader)

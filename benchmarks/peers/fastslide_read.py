"""fastslide: tiles of level 0 as RGB arrays."""

import fastslide
from tile_loop import measure


def open_reader(path):
    slide = fastslide.FastSlide.from_file_path(path)
    return lambda x, y, side: slide.read_region(location=(x, y), level=0, size=(side, side)).numpy()


measure(open_reader)

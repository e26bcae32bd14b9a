"""tiffslide: tiles of level 0 as RGB arrays."""

from tiffslide import TiffSlide
from tile_loop import measure


def open_reader(path):
    slide = TiffSlide(path)
    return lambda x, y, side: slide.read_region((x, y), 0, (side, side), as_array=True)


measure(open_reader)

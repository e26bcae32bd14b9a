"""Spacing and number of planes from the OME-XML in a TIFF's ImageDescription. Pure.

Only the attributes of the first ``Pixels`` element are read. A document type declaration is refused outright,
so no entity, internal or external, is ever expanded.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

MAX_OME_CHARACTERS = 16 * 1024 * 1024
_HEAD_CHARACTERS = 4096

_UM_PER_UNIT = {
    "m": 1e6,
    "dm": 1e5,
    "cm": 1e4,
    "mm": 1e3,
    "\u00b5m": 1.0,  # micro sign
    "\u03bcm": 1.0,  # Greek mu
    "um": 1.0,
    "nm": 1e-3,
    "pm": 1e-6,
    "\u00c5": 1e-4,
    "in": 25400.0,
}
"""Length units of the OME schema (2016-06) with a fixed size. ``pixel`` and ``reference frame`` have none."""


@dataclass(frozen=True)
class OmePixels:
    """The first image of an OME-TIFF.

    Attributes:
        mpp_x, mpp_y: PhysicalSizeX and -Y in um/px, ``None`` when absent or in a unit without a size.
        planes: planes over Z, T and channels; 1 for an ordinary picture, also an RGB one.
    """

    mpp_x: float | None
    mpp_y: float | None
    planes: int


def read_ome(description: str | None) -> OmePixels | None:
    """Read OME-XML; ``None`` when the text is something else, damaged or not to be trusted."""
    root = (description or "")[:_HEAD_CHARACTERS].find("<OME")
    if description is None or root < 0 or len(description) > MAX_OME_CHARACTERS:
        return None
    if "<!DOCTYPE" in description[:root]:
        return None
    parser = ElementTree.XMLPullParser(["start", "end"])
    pixels: dict[str, str] | None = None
    try:
        for start in range(0, len(description), 65536):
            parser.feed(description[start : start + 65536])
            for event, element in parser.read_events():
                name = element.tag.rpartition("}")[2]
                if name == "Pixels" and event == "start":
                    pixels = dict(element.attrib)
                elif pixels is not None and name in ("Channel", "Pixels"):
                    return _pixels(pixels, element.attrib if name == "Channel" else {})
    except ElementTree.ParseError:
        return None
    return None


def _pixels(pixels: dict[str, str], channel: dict[str, str]) -> OmePixels:
    def length(axis: str) -> float | None:
        try:
            size = float(pixels[f"PhysicalSize{axis}"])
        except (KeyError, ValueError):
            return None
        scale = _UM_PER_UNIT.get(pixels.get(f"PhysicalSize{axis}Unit", "\u00b5m"))
        return None if scale is None else size * scale

    def count(attributes: dict[str, str], name: str) -> int:
        text = attributes.get(name, "1")
        return max(1, int(text)) if text.isdecimal() and len(text) < 10 else 1

    # An interleaved RGB picture is one channel of three samples; SizeC counts samples.
    channels = max(1, count(pixels, "SizeC") // count(channel, "SamplesPerPixel"))
    planes = channels * count(pixels, "SizeZ") * count(pixels, "SizeT")
    return OmePixels(length("X"), length("Y"), planes)

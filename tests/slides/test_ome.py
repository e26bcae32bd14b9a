"""OME-TIFF: spacing from OME-XML, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile

from acpbench.slides.errors import SlideError
from acpbench.slides.ome import read_ome
from acpbench.slides.reader import open_slide
from tests.slides.pictures import textured_picture, write_pyramid


def xml(pixels: str, channel: str = '<Channel ID="Channel:0:0" SamplesPerPixel="3"/>', head: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>{head}'
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        f'<Pixels ID="Pixels:0" DimensionOrder="XYCZT" {pixels}>{channel}<TiffData/></Pixels></Image></OME>'
    )


RGB = 'SizeX="8" SizeY="8" SizeC="3" SizeZ="1" SizeT="1" Type="uint8"'


@pytest.mark.parametrize(
    ("size", "um"),
    [
        ('PhysicalSizeX="0.25" PhysicalSizeY="0.26"', (0.25, 0.26)),  # the schema's default is um
        ('PhysicalSizeX="0.25" PhysicalSizeXUnit="µm" PhysicalSizeY="0.26"', (0.25, 0.26)),
        (
            'PhysicalSizeX="250" PhysicalSizeXUnit="nm" PhysicalSizeY="0.00026" PhysicalSizeYUnit="mm"',
            (0.25, 0.26),
        ),
        ('PhysicalSizeX="0.00001" PhysicalSizeXUnit="in" PhysicalSizeY="0.26"', (0.254, 0.26)),
        ('PhysicalSizeX="1" PhysicalSizeXUnit="pixel" PhysicalSizeY="0.26"', (None, 0.26)),
        ('PhysicalSizeX="wide" PhysicalSizeY="0.26"', (None, 0.26)),
        ("", (None, None)),
    ],
)
def test_physical_size_in_its_unit(size, um):
    ome = read_ome(xml(f"{RGB} {size}"))
    assert (ome.mpp_x, ome.mpp_y) == pytest.approx(um)
    assert ome.planes == 1


@pytest.mark.parametrize(
    ("pixels", "channel", "planes"),
    [
        ('SizeC="3" SizeZ="1" SizeT="1"', '<Channel SamplesPerPixel="3"/>', 1),
        ('SizeC="3" SizeZ="1" SizeT="1"', "<Channel/><Channel/><Channel/>", 3),
        ('SizeC="3" SizeZ="5" SizeT="2"', '<Channel SamplesPerPixel="3"/>', 10),
        ('SizeC="4"', "", 4),
        ("", "", 1),
        ('SizeC="many" SizeZ="-2"', "", 1),
    ],
)
def test_planes(pixels, channel, planes):
    assert read_ome(xml(pixels, channel)).planes == planes


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "Aperio Image Library",
        "<OME",
        "<OME><Image>",
        "<OME></OME>",
        xml(f'{RGB} PhysicalSizeX="&x;"', head='<!DOCTYPE OME [<!ENTITY x "0.25">]>'),
        xml(f'{RGB} PhysicalSizeX="&x;"', head='<!DOCTYPE OME [<!ENTITY x SYSTEM "file:///etc/passwd">]>'),
        xml(f'{RGB} PhysicalSizeX="&x;"'),
        " " * (17 * 1024 * 1024) + "<OME/>",
        "<OME>" + "x" * (17 * 1024 * 1024),
    ],
)
def test_other_damaged_and_hostile_texts_say_nothing(text):
    assert read_ome(text) is None


def write_ome(path, picture, pixels=f'{RGB} PhysicalSizeX="0.5" PhysicalSizeY="0.5"', **options):
    text = xml(pixels).encode()
    tifffile.imwrite(path, picture, photometric="rgb", description=text, metadata=None, **options)
    return path


def test_striped_ome_tiff_needs_no_declared_spacing(tmp_path):
    picture = textured_picture(120, 90)
    path = write_ome(tmp_path / "a.ome.tif", picture, rowsperstrip=16, compression="zlib")
    with open_slide(path) as reader:
        assert (reader.backend, reader.vendor, reader.mpp_source) == (
            "tifffile",
            "ome-tiff",
            "ome.PhysicalSize",
        )
        assert reader.require_spacing() == (0.5, 0.5)
        assert np.array_equal(reader.read_region(10, 20, 0, 50, 60), picture[20:80, 10:60])
    with open_slide(path, 0.25) as reader:
        assert reader.require_spacing() == (0.25, 0.25)
        assert "0.25" in reader.warnings[0] and "0.5" in reader.warnings[0]


def test_tiled_ome_tiff_is_openslides_with_the_spacing_of_the_xml(tmp_path):
    picture = textured_picture(120, 90)
    path = write_ome(
        tmp_path / "a.ome.tif",
        picture,
        tile=(64, 64),
        resolution=(72, 72),
        resolutionunit="INCH",  # what a writer puts there that has nothing to say
    )
    with open_slide(path) as reader:
        assert (reader.backend, reader.mpp_source) == ("openslide", "ome.PhysicalSize")
        assert reader.require_spacing() == (0.5, 0.5)


def test_implausible_physical_size_is_refused(tmp_path):
    path = write_ome(
        tmp_path / "a.tif", textured_picture(64, 64), f'{RGB} PhysicalSizeX="352.9" PhysicalSizeY="352.9"'
    )
    with open_slide(path) as reader, pytest.raises(SlideError) as caught:
        reader.require_spacing()
    assert (caught.value.status, caught.value.reason) == ("no_mpp", "mpp_implausible")


@pytest.mark.parametrize("tile", [None, (64, 64)])
def test_fluorescence_stack_is_refused_with_its_reason(tmp_path, tile):
    stack = np.zeros((4, 64, 64), np.uint8)
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, stack, photometric="minisblack", tile=tile, ome=True, metadata={"axes": "CYX"})
    with pytest.raises(SlideError) as caught:
        open_slide(path, 0.5)
    assert caught.value.reason == "unsupported_format" and "4 planes" in caught.value.message


def test_pyramid_in_sub_directories(tmp_path):
    """What tifffile and Bio-Formats write; strips, so that OpenSlide leaves it to us."""
    picture = textured_picture(128, 96)
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as tiff:
        metadata = {"axes": "YXS", "PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25}
        tiff.write(picture, photometric="rgb", subifds=1, rowsperstrip=32, metadata=metadata)
        tiff.write(picture[::2, ::2], photometric="rgb", subfiletype=1, rowsperstrip=32)
    with open_slide(path) as reader:
        assert reader.level_dimensions == ((128, 96), (64, 48)) and reader.mpp_x == 0.25
        assert np.array_equal(reader.read_region(20, 40, 1, 30, 20), picture[::2, ::2][20:40, 10:40])


def test_plain_tiff_with_resolution_tags_is_as_before(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", textured_picture(100, 100), mpp=(0.5, 0.5))
    with open_slide(path) as reader:
        assert reader.mpp_source == "tiff.resolution"

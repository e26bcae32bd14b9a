"""LazySlide: tile coordinates from tissue polygons. Arguments: slide, polygons.json, um/px, tile side."""

import json
import sys
import time
import warnings

warnings.simplefilter("ignore")
import geopandas as gpd  # noqa: E402
import lazyslide as zs  # noqa: E402
import shapely  # noqa: E402
from spatialdata.models import ShapesModel  # noqa: E402
from wsidata import open_wsi  # noqa: E402

path, spacing, side = sys.argv[1], float(sys.argv[3]), int(sys.argv[4])
with open(sys.argv[2]) as handle:
    polygons = [shapely.from_wkt(text) for text in json.load(handle)]
wsi = open_wsi(path, reader="openslide")
tissues = gpd.GeoDataFrame({"tissue_id": range(len(polygons))}, geometry=polygons)
wsi.shapes["tissues"] = ShapesModel.parse(tissues)
seconds = []
for _ in range(3):
    start = time.perf_counter()
    tiles, _spec = zs.pp.tile_tissues(
        wsi, side, mpp=spacing, background_fraction=0.5, key_added=None, return_tiles=True
    )
    seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(seconds), "n_tiles": len(tiles)}))

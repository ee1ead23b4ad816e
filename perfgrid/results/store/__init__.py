"""Results on disk, region by region: a zarr store, its journal, who may continue it, and what fills it."""

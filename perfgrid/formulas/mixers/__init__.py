"""Sequence mixers: what stands between the two norms of a layer, one kind at a time, on one device."""

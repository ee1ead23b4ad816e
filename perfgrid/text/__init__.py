"""Numbers, names and values as people read them, for every room above."""

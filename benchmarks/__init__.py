"""How fast a grid is evaluated: ``python -m benchmarks``."""

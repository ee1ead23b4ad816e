"""Reductions of a grid that is never kept: best points, Pareto fronts, quantiles, reasons of infeasibility."""

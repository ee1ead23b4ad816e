"""Formulas and the graph that their argument names make."""

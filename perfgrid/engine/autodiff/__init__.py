"""Forward-mode derivatives of formulas, in NumPy and in JAX."""

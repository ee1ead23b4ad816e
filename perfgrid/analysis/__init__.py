"""What is asked of a study or a result: best designs, trade-offs, comparisons, sensitivities, prediction intervals."""

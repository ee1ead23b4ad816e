"""Evaluation of a plan: small quantities in NumPy, large ones tile by tile in compiled functions."""

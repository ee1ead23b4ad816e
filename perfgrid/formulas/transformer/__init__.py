"""Transformers: parameters, work, attention and mixtures of experts."""

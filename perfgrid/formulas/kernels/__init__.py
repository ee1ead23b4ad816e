"""Kernels: the hierarchical roofline, matrix products, fused attention, streams; their time and energy."""

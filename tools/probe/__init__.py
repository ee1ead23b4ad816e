"""Measure an NVIDIA device with PyTorch: what kernels, launches, streams and training steps take under its power limit.

``python -m tools.probe FILE.jsonl [PART ...]`` writes one JSON object per measurement. It needs
PyTorch and pynvml, changes no setting of the device, and takes about four minutes. Parts:

products     matrix products in 16 and 8 bits, alone after a rest and sustained, with clock and power
gradients    weight gradients with a result in 16 bits, in float32, and added to float32
streams      copies and element-wise kernels, with clock and power
overlap      a product and a copy at the same time, against each alone
launches     kernels one after the other: launched by the host, and replayed as a graph
layers       one transformer layer with few tokens: host time of each launch, forward and backward
attention    flash attention forward and backward
grouped      products of many experts with few rows each
steps        training steps of a small model that differ only in the number of microbatches
anatomy      kernels of such a step by name
"""

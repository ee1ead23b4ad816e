"""Serving: prefill and decoding of decoder-only models.

Kernels, devices, fabrics and parameters are those of training; what differs (shapes by `pass` instead of `phase`, small
messages, the cache, requests) is here.
"""

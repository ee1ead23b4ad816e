"""Fabrics inside studies: tiers, and the time of collectives and exchanges of every group."""

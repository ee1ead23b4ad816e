"""Parallel groups: what tensor, context, data and expert parallelism compute, keep and exchange."""

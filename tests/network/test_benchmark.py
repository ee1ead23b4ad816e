"""The benchmark of collectives runs and its table gives the times of single calls."""

from benchmarks.collectives import FABRICS, measure


def test_benchmark_of_collectives():
    found = measure(sizes=64, repeats=2)
    assert found["fabrics"] == len(FABRICS) == 14
    assert found["largest_relative_error"] < 1e-5  # single precision
    assert found["evaluations_per_cpu_second"] > 0
    assert found["algorithms"] > 200

"""Figures of a notebook are closed after its test."""

import pytest


@pytest.fixture(autouse=True)
def figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")

"""Fixtures of the tests of pictures."""

import pytest
from matplotlib import pyplot

import perfgrid as pg

from .drawn import LAYOUTS


@pytest.fixture(scope="package")
def layouts():
    """A study of layouts and its dataset."""
    study = pg.Study.make(**LAYOUTS)
    return study, pg.evaluate(study)


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")

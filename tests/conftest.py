"""Property tests have no deadline, and the same examples in every CI run. Processes take neighbouring tests."""

import os

import pytest
from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """``pytest -n``: a process runs tests in their order and shares what a file evaluates once; idle ones take over."""
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"

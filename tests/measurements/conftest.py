"""The script of a job."""

import pytest

from .given import JOB


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(JOB)
    return path

"""Property tests: no deadline (time is measured in benchmarks, not asserted), and the same examples in every CI run."""

import os

from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

"""``python -m perfgrid`` is the same as ``perfgrid``."""

from perfgrid.cli.main import main

main()

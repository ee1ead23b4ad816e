"""``python -m perfgrid`` is the same as ``perfgrid``."""

from perfgrid.cli import main

main()

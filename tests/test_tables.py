"""Tables fit the width of a terminal or a pipe: no line is longer, what is left out is named, numbers have no exponent."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.analysis.number_text import MOST_EXACT, UNITS, column, label_text, number, units_of
from perfgrid.catalog.units import in_unit
from perfgrid.cli.printing import console, tables
from tests.fuzz.program import run

STUDIES = Path(__file__).parents[1] / "studies"
FEWER = {  # of studies that take long
    "quickstart": ["axes.hbm_bandwidth={scale=[1.0]}", "axes.parallelism.devices=[1024]"],
    "serving": ["axes.requests_of.labels=['chat']", "axes.requests_of.zip={prompt_tokens=[512],output_tokens=[256]}"]
    + ["axes.batch=[64, 1024]", "axes.parallelism.devices=[8]"],
}
PIVOTS = {"collectives", "dram_technology", "node_scaling"}


class Terminal(io.TextIOWrapper):
    """The end of a pseudo-terminal at which a program writes."""

    def __init__(self, columns):
        self.reading, writing = pty.openpty()
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        super().__init__(os.fdopen(writing, "wb", buffering=0), encoding="utf-8", write_through=True)

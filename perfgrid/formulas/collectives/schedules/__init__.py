"""Collectives on every kind of network: schedules without units, and which of them a fabric offers.

A schedule (`schedule`) is a number of steps, the links passed and the load of the busiest link per byte of message. On
links of given latency and bandwidth it becomes the alpha-beta form

.. math:: t = \\alpha + \\beta B

for a message of B bytes, with one more term where the message is cut into chunks.

* equations of the algorithms: `switched` (switches and full meshes), `rings`, `grids` (tori, meshes, hypercubes,
  HyperX), `alltoall`, `hierarchy` (several tiers or levels)
* a fabric as data, and where a group lies on it: `fabric`; loads counted on a link graph: `graphs`
* what one tier offers: `tier_switched`, `tier_grid`; what a fabric offers: `algorithms`
"""

from .schedule import UNAVAILABLE as UNAVAILABLE
from .schedule import Coefficients as Coefficients
from .schedule import Schedule as Schedule

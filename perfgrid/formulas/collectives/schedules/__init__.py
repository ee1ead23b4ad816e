"""Collectives on every kind of network: schedules without units, and which of them a fabric has."""

from .schedule import UNAVAILABLE as UNAVAILABLE
from .schedule import Coefficients as Coefficients
from .schedule import Schedule as Schedule

"""What is asked of a result: best designs, and how many are feasible. Knows no physics."""

from .best import best as best
from .feasibility import Feasibility as Feasibility
from .feasibility import Violation as Violation
from .feasibility import violations as violations
from .frontier import frontier as frontier

"""Time, memory and cost of LLM training for millions of design points at once, labelled and differentiable."""

from .analysis import best as best
from .catalog import Catalog as Catalog
from .catalog import load_catalog as load_catalog
from .compare import Comparison as Comparison
from .compare import compare as compare
from .engine import PerfgridError as PerfgridError
from .engine import Registry as Registry
from .engine import alternative as alternative
from .engine import constraint as constraint
from .engine import formula as formula
from .engine import xp as xp
from .engine.dataset import feasible as feasible
from .evidence import validate as validate
from .formulas import BREAKDOWN as BREAKDOWN
from .kernels import kernels as kernels
from .network import collective_choice as collective_choice
from .network import collective_time as collective_time
from .run import evaluate as evaluate
from .run import explain as explain
from .run import save as save
from .run import stream as stream
from .study import Study as Study
from .study import load_study as load_study

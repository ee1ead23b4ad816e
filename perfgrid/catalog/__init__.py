"""The data: models, devices, topologies and software stacks, each number with its source, and how they are read."""

from .loader import Catalog as Catalog
from .loader import catalog_release as catalog_release
from .loader import load_catalog as load_catalog
from .loader import load_variables as load_variables
from .schema import Detail as Detail
from .schema import Entry as Entry
from .schema import Variable as Variable
from .schema import convert as convert
from .schema import converted as converted

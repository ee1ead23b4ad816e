"""Evidence: predictions beside published measurements of real systems, evaluated as one study axis."""

from .schema import Record as Record
from .schema import read_records as read_records
from .validation import Validation as Validation
from .validation import validate as validate

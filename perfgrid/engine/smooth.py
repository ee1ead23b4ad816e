"""Numbers with slopes under the names by which a search calls them: see `engine.dual` and `engine.slopes`."""

from .dual import Dual, margin_of, value_of
from .namespace import Arraylike
from .slopes import smoothing

Sloped = Dual

__all__ = ["Arraylike", "Sloped", "margin_of", "smoothing", "value_of"]

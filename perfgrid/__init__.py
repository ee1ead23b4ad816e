"""Time, memory, energy and cost of LLM training and serving for millions of designs at once, labelled, differentiable.

The names below are the public interface; each is loaded when it is first used. Everything else is private.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

"""Makes a GGUF head from a checkpoint, or mends an old one.

The tokenizer and whatever else a head must know of its target come from the target's own GGUF.
"""

from .run import convert

__all__ = ["convert"]

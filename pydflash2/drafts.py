"""What may draft for a text: the head, at a fixed width or the fastest one, and lookup in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydflash2.native import LOOKUPS, ffi, lib
from pydflash2.settings import Lookup, Request


@dataclass(frozen=True)
class Drafts:
    """The drafters of one request."""

    width: int  # tokens the head drafts a round, at most; 0: it does not
    auto: bool  # each round at the width that is expected to be fastest, up to `width`
    lookup: Lookup
    why: str  # stats.drafting

    @property
    def on(self) -> bool:
        return self.width > 0 or self.lookup != "off"

    def params(self, request: Request) -> Any:
        """A pd2_round_params."""
        params = ffi.new("pd2_round_params *")
        lib.pd2_round_default_params(params)
        # Lookup alone is chosen by what is fastest too; a width of 0 would switch that off.
        alone = self.width == 0 and self.lookup == "auto"
        params.max_draft_tokens = -1 if self.auto or alone else self.width
        params.lookup = LOOKUPS[self.lookup]
        # A text that is drawn depends on its widths: were a clock to choose them, its seed would not do.
        params.reproducible = request.sampling.temperature > 0
        params.walk.temperature = request.draft_temperature
        params.walk.min_probability = request.min_draft_probability
        return params

"""Everything that one training run can be told, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydflash2 import arguments
from pydflash2.train.batches import BatchSettings
from pydflash2.train.card import Terms
from pydflash2.train.loop import LoopSettings
from pydflash2.train.objective import ObjectiveSettings
from pydflash2.train.optimisers import OptimiserSettings
from pydflash2.train.prompts import N_FROM_DOCUMENTS, PROMPT_SIZES

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class DataOptions:
    """What the target is asked to write.

    prompts: files and folders; see `pydflash2.train.prompts`. held_out_paths: prompts to measure with;
        without them a `held_out` share of the others is.
    prompt_sizes: tokens of prompts cut from documents. longest_prompt: of those in lists, the others are left
        out.
    n_tokens: continuations' tokens, all texts together; minutes: of writing, at most.
    new_tokens: of one text at most. greedy_share: of the texts; the others are drawn at temperatures between
    the two.
    top_k, top_p, min_p: of the texts that are drawn, as they will be served.
    feature_budget: bytes of features on disk; what exceeds it is computed anew each time.
    """

    prompts: tuple[Path, ...]
    held_out_paths: tuple[Path, ...] = ()
    held_out: float = 0.05
    n_prompts: int | None = None
    prompt_sizes: tuple[int, ...] = PROMPT_SIZES
    longest_prompt: int = 1024
    suffixes: tuple[str, ...] | None = None
    as_chat: bool = False
    n_tokens: int | None = 500_000
    minutes: float | None = None
    new_tokens: int = 256
    n_parallel: int | None = None
    greedy_share: float = 0.5
    temperatures: tuple[float, float] = (0.7, 1.0)
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n_top: int = 16
    feature_budget: int = 20_000_000_000

    def __post_init__(self) -> None:
        for name, value, least in (
            ("tokens", self.n_tokens, 1),
            ("new_tokens", self.new_tokens, 16),
            ("longest_prompt", self.longest_prompt, 1),
            ("parallel", self.n_parallel, 1),
            ("top_k", self.top_k, 0),
            ("feature_budget", self.feature_budget, 0),
        ):
            if value is not None:
                arguments.integer(name, value, least, 2**62)
        for size in self.prompt_sizes:
            arguments.integer("prompt_tokens", size, 1)
        if self.minutes is not None:
            arguments.number("data_minutes", self.minutes, 1e-3)

    @property
    def n_from_documents(self) -> int:
        """Prompts to cut: enough for all tokens, where texts loop after a quarter of their length."""
        return min(max(N_FROM_DOCUMENTS, 4 * (self.n_tokens or 0) // self.new_tokens), 2**20)


@dataclass(frozen=True)
class MeasureOptions:
    """How the exported head is measured in the engine: greedy, `max_tokens` a prompt.

    every: minutes of training between; more where measuring takes over a tenth of the time. n_prompts:
    held-out ones, `timed` of them for the speed. final_prompts: at the end, where as many prompts of
    training are too.
    """

    every: float = 5.0
    n_prompts: int = 16
    final_prompts: int = 40
    max_tokens: int = 96
    timed: int = 6

    def __post_init__(self) -> None:
        arguments.number("measure_every", self.every, 1e-3)


@dataclass(frozen=True)
class Options:
    """One run. `geometry` overrides what is chosen for the target; see `pydflash2.train.geometry`."""

    target: Path
    out: Path
    data: DataOptions
    geometry: dict[str, Any] = field(default_factory=dict)
    init: Path | None = None  # a head to go on from
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    device: str = "auto"
    precision: Precision = "auto"
    n_threads: int | None = None
    n_gpu_layers: int = -1
    seed: int = 1
    outtype: str = "f16"
    terms: Terms = field(default_factory=Terms)
    name: str | None = None

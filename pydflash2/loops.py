"""Texts that only repeat themselves: any drafter foresees them, so their speed says nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHORTEST_LOOP = 32  # tokens repeated; less can be a list, or a table's rule


def loop_start(tokens: Sequence[int]) -> int:
    """Index of the token from which on a text repeats itself until its end; len(tokens) if it doesn't.

    What repeats has any period, has been written twice at least, and its repetition is SHORTEST_LOOP tokens
    long or longer. The first pass is no repetition yet.
    """
    ids = np.asarray(tokens)
    longest, start = 0, len(ids)
    for period in range(1, len(ids) // 2 + 1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        first = (
            int(differs[-1]) + 1 if len(differs) else 0
        )  # from here on, each token is the one a period later
        repeated = len(ids) - period - first
        if repeated >= max(period, SHORTEST_LOOP) and repeated > longest:
            longest, start = repeated, first + period
    return start

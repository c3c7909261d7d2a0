"""A block's lattice as an oracle gives it, and how ours is compared with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiny.native import Draft

TOLERANCE = 1e-4  # of the largest value; what is measured is a few 1e-6


@dataclass(frozen=True)
class Lattice:
    candidates: npt.NDArray[np.int64]  # [n, K], in any order; DFlash 1: the best alone
    unary: npt.NDArray[np.float32] | None  # [n, K]; None: not known
    scores: npt.NDArray[np.float32] | None  # [n, K, K], as in pd2_draft; None: DFlash 1


def assert_same_lattice(draft: Draft, expected: Lattice) -> None:
    """The same candidates, logits and transition scores, in whatever order each side lists candidates."""
    k = expected.candidates.shape[1]
    ours = np.take_along_axis(draft.candidates, np.argsort(-draft.unary, axis=1, kind="stable")[:, :k], 1)
    np.testing.assert_array_equal(np.sort(ours, 1), np.sort(expected.candidates, 1))
    place = (draft.candidates[:, :, None] == expected.candidates[:, None, :]).argmax(
        1
    )  # [n, K] of theirs among ours
    if expected.unary is not None:
        assert_close(np.take_along_axis(draft.unary, place, 1), expected.unary)
    if expected.scores is None:
        return
    after_anchor = draft.scores[0]
    np.testing.assert_array_equal(after_anchor, np.broadcast_to(after_anchor[0], after_anchor.shape))
    before = np.concatenate([place[:1], place[:-1]])  # at the first position every row is the same
    scores = np.stack(
        [plane[rows][:, columns] for plane, rows, columns in zip(draft.scores, before, place, strict=True)]
    )
    assert_close(scores, expected.scores)


def assert_close(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.abs(theirs).max())

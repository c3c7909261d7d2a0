"""Losses against the same formulas written down in NumPy, one position at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pydflash2.train.objective import (  # noqa: E402
    Blocks,
    Objective,
    ObjectiveSettings,
    Vocabulary,
    decay_weights,
    pace_weights,
)

N_VOCAB, N_EMBD, K, N_TOP, BATCH, ANCHORS, BLOCK = 40, 6, 4, 3, 2, 3, 5
N = BLOCK - 1


class Rows:
    def __init__(self, weight: Any, tokens: Any) -> None:
        self.weight, self.tokens = weight, tokens

    def logits(self, hidden: Any) -> Any:
        return hidden @ self.weight.T


class FakeTables:
    """An output head, and nothing to embed with: the fake head does not look."""

    def __init__(self) -> None:
        self.output = torch.randn(N_VOCAB, N_EMBD, generator=torch.Generator().manual_seed(3))

    def embed(self, tokens: Any) -> Any:
        return tokens

    def shortlist(self, tokens: Any) -> Rows:
        return Rows(self.output[tokens], tokens)

    def everything(self) -> Rows:
        return Rows(self.output, torch.arange(N_VOCAB))


class Selector(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(4)
        self.before = torch.nn.Parameter(torch.randn(N_VOCAB + 1, N_EMBD, generator=made))
        self.after = torch.nn.Parameter(torch.randn(N_VOCAB + 1, N_EMBD, generator=made))

    def scores(self, hidden: Any, unary: Any, previous: Any, candidates: Any) -> Any:
        gate = self.before[previous] * hidden
        return unary + (self.after[candidates] * gate[..., None, :]).sum(-1)


class FakeHead(torch.nn.Module):
    """Gives what it was told to: losses are of the numbers that come out of a head, whichever."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(mask_token=0, top_k=K, rank=N_EMBD, block_size=BLOCK)
        self.hidden = torch.nn.Parameter(
            torch.randn(BATCH, ANCHORS, N, N_EMBD, generator=torch.Generator().manual_seed(5))
        )
        self.candidate_selector = Selector()

    def forward(self, features: Any, blocks: Any, anchors: Any) -> Any:
        return self.hidden


def blocks(seed: int = 0) -> Blocks:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, N_VOCAB, (BATCH, ANCHORS, BLOCK))
    valid = np.ones((BATCH, ANCHORS, N), bool)
    valid[0, 0, 2:] = False  # a text that ends amid its block
    top_tokens = np.stack([random.permutation(N_VOCAB)[:N_TOP] for _ in range(BATCH * ANCHORS * N)]).reshape(
        BATCH, ANCHORS, N, N_TOP
    )
    top_tokens[..., 0] = tokens[..., 1:]  # the target's likeliest is what it wrote
    shares = random.dirichlet(np.ones(N_TOP + 1), (BATCH, ANCHORS, N))[..., :N_TOP]
    shares[1, 0] = 0  # a prompt's positions: the target's distribution is not known
    return Blocks(
        torch.zeros(BATCH, 1, 1),
        torch.zeros(BATCH, ANCHORS, dtype=torch.long),
        torch.from_numpy(tokens),
        torch.from_numpy(valid),
        torch.from_numpy(top_tokens),
        torch.from_numpy(shares.astype(np.float32)),
    )


def by_hand(
    head: FakeHead, output: np.ndarray, made: Blocks, settings: ObjectiveSettings, vocabulary: Vocabulary
) -> tuple[float, float, float]:
    """Unary loss, selector loss and coverage, position by position, in doubles."""
    hidden = head.hidden.detach().numpy().astype(float)
    before, after = (p.detach().numpy().astype(float) for p in head.candidate_selector.parameters())
    ids = vocabulary.rows.tokens.numpy()
    listed = set(ids[: vocabulary.n_listed])
    row = {int(token): place for place, token in enumerate(ids[: vocabulary.n_listed])}  # of the codebooks
    other = vocabulary.n_listed
    counts = np.ones(len(ids))
    if vocabulary.n_listed < N_VOCAB:
        counts[vocabulary.n_listed :] = (N_VOCAB - vocabulary.n_listed) / (len(ids) - vocabulary.n_listed)
    total = np.zeros(4)
    for b in range(BATCH):
        for a in range(ANCHORS):
            rows = []
            for t in range(N):
                gold, previous = int(made.tokens[b, a, t + 1]), int(made.tokens[b, a, t])
                logits = output.astype(float) @ hidden[b, a, t]
                log_z = np.log((np.exp(logits[ids]) * counts).sum())
                if not made.valid[b, a, t] or gold not in ids:
                    rows.append((0.0, 0.0, 0.0, 0.0, False))
                    continue
                wanted = {gold: 1.0}
                top = made.top_probabilities[b, a, t].numpy().astype(float)
                if top.sum() > 0:
                    wanted[gold] = 1 - settings.teacher
                    for token, share in zip(made.top_tokens[b, a, t].tolist(), top / top.sum(), strict=True):
                        wanted[token] = wanted.get(token, 0.0) + settings.teacher * share
                wanted = {token: share for token, share in wanted.items() if token in ids}
                mass = sum(wanted.values())
                wanted = {token: share / mass for token, share in wanted.items()}
                unary = -sum(share * (logits[token] - log_z) for token, share in wanted.items())

                ranked = sorted(listed, key=lambda token: -logits[token])[:K]
                covered = gold in ranked
                if settings.missing_gold == "insert" and not covered:
                    ranked[-1] = gold
                selector = 0.0
                if gold in ranked:
                    scores = np.array(
                        [
                            logits[c]
                            + (
                                before[row.get(previous, other)] * hidden[b, a, t] * after[row.get(c, other)]
                            ).sum()
                            for c in ranked
                        ]
                    )
                    log_p = scores - np.log(np.exp(scores).sum())
                    shares = np.array([wanted.get(c, 0.0) for c in ranked])
                    selector = -float((shares / shares.sum() * log_p).sum())
                rows.append((unary, selector, float(covered), np.exp(logits[gold] - log_z), True))
            confidence = np.array([row[3] for row in rows])
            smooth = (1 - settings.pace_alpha) * confidence + settings.pace_alpha
            for t, (unary, selector, covered, _, counted) in enumerate(rows):
                weight = np.exp(-t / settings.decay)
                if settings.weighting == "d-pace":
                    weight = sum(np.prod(smooth[: m + 1]) for m in range(t, N))
                total += weight * counted * np.array([unary, selector, covered, 1.0])
    return tuple(total[:3] / total[3])


@pytest.mark.parametrize("shortlist", [None, 25], ids=["all tokens", "shortlist"])
@pytest.mark.parametrize("missing_gold", ["skip", "insert"])
@pytest.mark.parametrize("teacher", [0.0, 0.6])
@pytest.mark.parametrize("weighting", ["decay", "d-pace"])
def test_losses_are_those_computed_by_hand(
    weighting: Any, teacher: float, missing_gold: Any, shortlist: int | None
) -> None:
    settings = ObjectiveSettings(weighting, teacher=teacher, missing_gold=missing_gold, selector_weight=0.7)
    tables: Any = FakeTables()
    listed = None if shortlist is None else np.sort(np.random.default_rng(1).permutation(N_VOCAB)[:shortlist])
    vocabulary = Vocabulary(tables, listed, N_VOCAB, negatives=6, seed=2)
    head: Any = FakeHead()
    made = blocks()
    losses = Objective(tables, vocabulary, settings, torch.float32)(head, made)
    unary, selector, covered = by_hand(head, tables.output.numpy(), made, settings, vocabulary)
    assert losses.unary == pytest.approx(unary, rel=2e-5)
    assert losses.selector == pytest.approx(selector, rel=2e-5)
    assert losses.covered == pytest.approx(covered, rel=2e-5)
    assert float(losses.total) == pytest.approx(unary + 0.7 * selector, rel=2e-5)


def test_the_gradient_is_the_slope() -> None:
    settings = ObjectiveSettings(teacher=0.5)
    tables: Any = FakeTables()
    objective = Objective(tables, Vocabulary(tables, None, N_VOCAB, 0, 0), settings, torch.float32)
    head: Any = FakeHead().double()
    tables.output = tables.output.double()
    objective.vocabulary = Vocabulary(tables, None, N_VOCAB, 0, 0)
    made = blocks()
    objective(head, made).total.backward()
    random = np.random.default_rng(0)
    for parameter in (head.hidden, head.candidate_selector.before, head.candidate_selector.after):
        for _ in range(5):
            place = tuple(int(random.integers(side)) for side in parameter.shape)
            step, values = 1e-3, []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter[place] += sign * step
                    values.append(float(objective(head, made).total))
                    parameter[place] -= sign * step
            slope = (values[0] - values[1]) / (2 * step)
            assert float(parameter.grad[place]) == pytest.approx(slope, rel=1e-2, abs=2e-4)


def test_positions_behind_a_text_count_for_nothing() -> None:
    settings = ObjectiveSettings()
    tables: Any = FakeTables()
    objective = Objective(tables, Vocabulary(tables, None, N_VOCAB, 0, 0), settings, torch.float32)
    head: Any = FakeHead()
    made, other = blocks(), blocks()
    other.tokens[0, 0, 3:] = 0  # labels of positions 3 and 4, which are not valid
    assert float(objective(head, made).total) == pytest.approx(float(objective(head, other).total), rel=1e-6)


def test_negatives_stand_for_all_that_are_not_listed() -> None:
    """Their correction makes the normaliser right on average: close to that over all tokens."""
    tables: Any = FakeTables()
    listed = np.arange(10)
    hidden = torch.randn(7, N_EMBD, generator=torch.Generator().manual_seed(9)) * 0.3
    full = (hidden @ tables.output.T).exp().sum(-1)
    estimates = []
    vocabulary = Vocabulary(tables, listed, N_VOCAB, negatives=8, seed=0)
    for step in range(0, 32 * 400, 32):
        vocabulary.at_step(step)
        assert vocabulary.correction is not None
        estimates.append((vocabulary.rows.logits(hidden) + vocabulary.correction).exp().sum(-1))
    assert torch.stack(estimates).mean(0).numpy() == pytest.approx(full.numpy(), rel=0.02)


def test_negatives_depend_on_seed_and_step_alone() -> None:
    tables: Any = FakeTables()
    one, other = (Vocabulary(tables, np.arange(10), N_VOCAB, 8, seed=5) for _ in range(2))
    for step in (0, 40, 70):
        one.at_step(step)
    other.at_step(70)
    assert one.rows.tokens.tolist() == other.rows.tokens.tolist()
    assert (one.row_of == other.row_of).all()
    assert one.rows.tokens.tolist() != Vocabulary(tables, np.arange(10), N_VOCAB, 8, 6).rows.tokens.tolist()


def test_weights() -> None:
    assert decay_weights(4, 4.0).tolist() == pytest.approx(np.exp(-np.arange(4) / 4).tolist())
    confidence = torch.tensor([[0.9, 0.5, 0.1]])
    smooth = 0.5 * confidence[0].numpy() + 0.5
    prefix = np.cumprod(smooth)
    expected = [prefix.sum(), prefix[1:].sum(), prefix[2]]
    assert pace_weights(confidence, 0.5)[0].tolist() == pytest.approx(expected)
    assert pace_weights(torch.ones(1, 5), 0.5).tolist() == [
        [5, 4, 3, 2, 1]
    ]  # a sure head: all positions count

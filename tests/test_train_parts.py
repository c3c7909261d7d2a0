"""The parts of training that need no engine: batches, optimisers, codebooks, plans."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from checkpoints import CONFIG_2  # noqa: E402
from pydflash2.convert.config import HeadConfig  # noqa: E402
from pydflash2.errors import OutOfMemoryError  # noqa: E402
from pydflash2.train import devices, plan  # noqa: E402
from pydflash2.train.batches import Batches, BatchSettings  # noqa: E402
from pydflash2.train.codebooks import Codebooks  # noqa: E402
from pydflash2.train.head import Head  # noqa: E402
from pydflash2.train.objective import Losses  # noqa: E402
from pydflash2.train.optimisers import (  # noqa: E402
    Muon,
    OptimiserSettings,
    optimisers,
    orthogonalised,
    rate_share,
)
from pydflash2.train.replicas import Replicas  # noqa: E402
from pydflash2.train.texts import Text  # noqa: E402

BLOCK, WIDTH, N_TOP = 4, 3, 2


def text(n_prompt: int, n_written: int, first: int, held_out: bool = False) -> Text:
    """Tokens count up from `first`, so that a token tells its position."""
    n = n_prompt + n_written
    tokens = np.arange(first, first + n, dtype=np.int32)
    top = np.stack([tokens[n_prompt:], tokens[n_prompt:] + 500], 1)
    logprobs = np.log(np.tile([0.75, 0.25], (n_written, 1))).astype(np.float16)
    return Text(tokens, n_prompt, 0.0, top, logprobs, held_out, "a.py")


TEXTS = [text(3, 9, 100), text(6, 2, 200), text(1, 30, 300)]


class Rows:
    """Features that tell text and position."""

    def __getitem__(self, index: int) -> Any:
        n = len(TEXTS[index].tokens) - 1
        return torch.stack([torch.full((n,), index), torch.arange(n), torch.ones(n)], 1).to(torch.bfloat16)


def batches(**changes: Any) -> Batches:
    features: Any = Rows()
    return Batches(
        TEXTS, range(3), features, BLOCK, 9, BatchSettings(**{"n_texts": 2, "n_anchors": 5} | changes), 7
    )


def test_blocks_hold_what_follows_their_anchors() -> None:
    for number in range(6):
        made = batches().batch(number)
        assert made.anchors.shape == (2, 5)
        assert made.tokens.shape == (2, 5, BLOCK)
        for row in range(2):
            index = int(made.features[row, 0, 0])
            one = TEXTS[index]
            n = len(one.tokens)
            assert made.features[row, : n - 1, 1].tolist() == list(range(n - 1))
            assert not made.features[row, n - 1 :].any()  # padding
            for anchor, tokens, valid, top, shares in zip(
                made.anchors[row],
                made.tokens[row],
                made.valid[row],
                made.top_tokens[row],
                made.top_probabilities[row],
                strict=True,
            ):
                place = int(anchor)
                assert one.n_prompt <= place <= n - 2
                assert int(tokens[0]) == one.tokens[place]
                for k in range(1, BLOCK):
                    inside = place + k < n
                    assert bool(valid[k - 1]) == inside
                    assert int(tokens[k]) == (one.tokens[place + k] if inside else 9)
                    if inside:
                        assert top[k - 1].tolist() == [one.tokens[place + k], one.tokens[place + k] + 500]
                        assert shares[k - 1].tolist() == pytest.approx([0.75, 0.25], rel=1e-3)
                    else:
                        assert not shares[k - 1].any()


def test_anchors_in_the_prompt_know_no_distribution_there() -> None:
    made = batches(prompt_share=0.6).batch(1)
    seen = 0
    for row in range(2):
        one = TEXTS[int(made.features[row, 0, 0])]
        for anchor, shares in zip(made.anchors[row], made.top_probabilities[row], strict=True):
            for k in range(1, BLOCK):
                in_prompt = int(anchor) + k < one.n_prompt
                seen += in_prompt
                if in_prompt:
                    assert not shares[k - 1].any()
    assert seen


def test_batches_depend_on_seed_and_number_alone_and_take_every_text() -> None:
    one, other = batches(), batches()
    for number in (4, 0, 2):
        one.batch(number)
    assert torch.equal(one.batch(3).tokens, other.batch(3).tokens)
    assert not torch.equal(one.batch(3).tokens, one.batch(4).tokens)
    taken = [int(made.features[row, 0, 0]) for made in map(one.batch, range(3)) for row in range(2)]
    assert sorted(taken) == [0, 0, 1, 1, 2, 2]
    assert sorted(taken[:3]) == [0, 1, 2]


# ---- optimisers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_muons_update_has_singular_values_of_about_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonalised(u @ torch.diag(torch.logspace(0, -1.5, len(s))) @ v)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert torch.linalg.svdvals(u.T @ made @ v.T - torch.diag(torch.diag(u.T @ made @ v.T))).max() < 0.05


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_every_parameter_has_one_optimiser(kind: Any, n_parts: int, tmp_path: Path) -> None:
    head = Head(config())
    made = optimisers(head, OptimiserSettings(kind), n_parts)
    held = [id(parameter) for one in made for group in one.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in head.parameters())
    muons = [one for one in made if isinstance(one, Muon)]
    assert len(muons) == (n_parts if kind == "muon" else 0)
    for one in muons:
        assert all(parameter.dim() == 2 for group in one.param_groups for parameter in group["params"])


def test_the_rate_rises_falls_and_ends_at_its_floor() -> None:
    settings = OptimiserSettings(warm_up=0.1, floor=0.05)
    shares = [rate_share(at, settings) for at in np.linspace(0, 1, 101)]
    assert 0 < shares[0] < 0.05
    assert max(shares) == pytest.approx(1, abs=0.02)
    assert np.argmax(shares) == pytest.approx(10, abs=1)
    assert all(a >= b for a, b in pairwise(shares[11:]))
    assert shares[-1] == pytest.approx(0.05)


def config() -> HeadConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG_2))
        return HeadConfig.read(Path(folder))


def test_replicas_give_the_mean_gradient() -> None:
    """Of four batches on three copies: the gradient that one copy has of their mean."""

    def objective(head: Any, batch: Any) -> Any:
        return Losses((head.fc.weight * batch).sum() ** 2, 0.0, 0.0, 0.0)

    parts = [torch.full((1,), float(n)) for n in range(1, 5)]
    gradients = []
    for n in (1, 3):
        torch.manual_seed(0)
        head = Head(config())
        replicas = Replicas(head, n)
        made: Any = [lambda part=part: part for part in parts]
        losses = replicas.gradients(objective, made)
        assert len(losses) == 4
        assert head.fc.weight.grad is not None
        gradients.append(head.fc.weight.grad.clone())
        replicas.close()
    assert gradients[1].numpy() == pytest.approx(gradients[0].numpy(), rel=1e-5)


# ---- codebooks and plans -----------------------------------------------------------------------------------


def test_codebooks_there_and_back() -> None:
    whole = replace(config(), n_vocab=40)
    listed = np.array([3, 7, 8, 30])
    books = Codebooks(whole, listed)
    torch.manual_seed(1)
    before = Head(whole).state_dict()
    names = ["candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"]
    for name in names:
        before[name] = torch.randn_like(before[name])
    small = books.compact(before)
    Head(books.trained).load_state_dict(small)
    for name in names:
        assert torch.equal(small[name][:4], before[name][listed])
        assert not small[name][4].any()
    for name, value in books.whole(small, before).items():
        assert torch.equal(value, before[name]), name
    small[names[0]] = small[names[0]] + 1
    anew = books.whole(small, None)[names[0]]
    assert torch.equal(anew[listed], small[names[0]][:4])
    assert torch.equal(anew[0], small[names[0]][4])
    assert torch.equal(books.whole(small, before)[names[0]][0], before[names[0]][0])
    assert Codebooks(whole, None).trained == whole


def test_a_plan_counts_what_grows() -> None:
    head = Head(config())
    small = plan.plan(head, BatchSettings(1, 8), 100, 50, 1, 0)
    wide = plan.plan(head, BatchSettings(1, 8), 200, 50, 1, 0)
    many = plan.plan(head, BatchSettings(2, 8), 100, 50, 2, 10)
    assert small.parameters == sum(parameter.numel() for parameter in head.parameters())
    assert wide.logits == 2 * small.logits
    assert many.logits == 4 * small.logits
    assert many.features == 10
    assert math.isclose(small.memory, small.weights + small.output_rows + small.logits + small.activations)
    assert plan.size(2.5e9) == "2.5 GB"


def test_features_that_are_there_are_room_for_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = plan.plan(Head(config()), BatchSettings(1, 8), 100, 50, 1, 1000)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda folder: SimpleNamespace(free=400))
    with pytest.raises(OutOfMemoryError, match=r"features take 1 kB, but .* has 0 kB free"):
        plan.check(needs, torch.device("cpu"), tmp_path)
    (tmp_path / "features-00000.safetensors").write_bytes(bytes(700))
    plan.check(needs, torch.device("cpu"), tmp_path)


# ---- where and with which numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"bf16": True}, torch.bfloat16),
    ],
)
def test_a_cpu_multiplies_what_it_has_instructions_for(
    capabilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    cpu = torch.device("cpu")
    assert devices.precision("auto", cpu) == expected
    assert devices.precision("float32", cpu) == torch.float32
    assert devices.precision("bfloat16", cpu) == torch.bfloat16
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # PyTorch before 2.11
    assert devices.precision("auto", cpu) == torch.float32


def test_products_of_bfloat16_orthogonalise_too() -> None:
    matrix = torch.randn(24, 40, generator=torch.Generator().manual_seed(5))
    exact, rounded = orthogonalised(matrix), orthogonalised(matrix, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.nn.functional.cosine_similarity(exact.flatten(), rounded.flatten(), 0) > 0.995

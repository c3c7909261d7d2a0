"""tests/native/sampling_oracle as the tests drive it: rows in, distributions and texts out."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parents[2] / "build" / "tests"))
PROGRAM = FOLDER / "sampling_oracle"

Floats = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]


class Refused(Exception):
    """The sampler threw."""


@dataclass(frozen=True)
class Settings:
    """Of a chain, under the names `Engine.generate` gives them, and the text before."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Sequence[tuple[int, float]] = ()
    text: Sequence[int] = ()


@dataclass(frozen=True)
class Rounds:
    accepted: npt.NDArray[np.int32]  # [n_draws]
    sampled: npt.NDArray[np.int32]  # [n_draws] rows
    tokens: npt.NDArray[np.int32]  # [n_draws, n_draft + 1]


def write_vocabulary(path: Path, n_vocab: int) -> Path:
    """A file that says how many tokens there are, and nothing more."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@dataclass
class SamplingOracle:
    vocabulary: Path
    n_vocab: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        command = [PROGRAM, write_vocabulary(self.vocabulary, self.n_vocab)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> SamplingOracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0

    def compare(self, settings: Settings, logits: npt.ArrayLike) -> tuple[Probabilities, Probabilities]:
        """[n_vocab] twice: ours, and what llama.cpp's samplers over the whole vocabulary leave."""
        self._ask(settings, 0, np.asarray(logits, np.float32))
        status = int(self._read(np.int32, 1)[0])
        if status == 1:
            raise Refused
        assert status == 0, "the distribution contradicts itself"
        return self._read(np.float64, self.n_vocab), self._read(np.float64, self.n_vocab)

    def rounds(
        self, settings: Settings, rows: Floats, candidates: npt.ArrayLike, q: npt.ArrayLike, n: int, seed: int
    ) -> Rounds:
        """rows: [n_draft + 1, n_vocab]; candidates, q: [n_draft, K]."""
        ids, shares = np.asarray(candidates, np.int32), np.asarray(q, np.float32)
        self._ask(settings, n, np.array([*ids.shape, seed], np.int32), ids, shares, rows)
        answers = self._read(np.int32, n * (2 + len(rows))).reshape(n, -1)
        return Rounds(answers[:, 0], answers[:, 1], answers[:, 2:])

    def _ask(self, settings: Settings, n_draws: int, *arrays: npt.NDArray[Any]) -> None:
        one = settings
        bias: Mapping[str, npt.NDArray[Any]] = {
            "tokens": np.array([token for token, _ in one.logit_bias], np.int32),
            "values": np.array([value for _, value in one.logit_bias], np.float32),
        }
        counts = struct.pack(
            "=5i", n_draws, len(one.logit_bias), len(one.text), one.top_k, one.penalty_last_n
        )
        penalties = (one.repeat_penalty, one.presence_penalty, one.frequency_penalty)
        values = struct.pack("=7f", one.temperature, one.top_p, one.min_p, one.typical_p, *penalties)
        parts = [counts, values, bias["tokens"].tobytes(), bias["values"].tobytes()]
        parts += [np.array(one.text, np.int32).tobytes(), *(array.tobytes() for array in arrays)]
        assert self.process.stdin
        self.process.stdin.write(b"".join(parts))
        self.process.stdin.flush()

    def _read(self, dtype: type, n: int) -> npt.NDArray[Any]:
        assert self.process.stdout
        size = n * np.dtype(dtype).itemsize
        data = self.process.stdout.read(size)
        assert len(data) == size, "the program ended"
        return np.frombuffer(data, dtype)

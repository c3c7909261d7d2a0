"""The target's features of whole texts, in BF16: on disk as far as a budget allows, else computed again.

A shard is a safetensors file with one tensor, the rows of consecutive texts, and a digest of what they depend
on: those texts, the target, the taps. It is read through a memory map.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from pydflash2.errors import NativeError
from pydflash2.train.files import remove_parts, write_beside
from pydflash2.train.texts import Text

Floats = npt.NDArray[np.float32]

BYTES = 2  # of a BF16 number
_SHARD_BYTES = 64 << 20
_SPARE_BYTES = 64 << 20  # that a disk keeps
_SCALE_ROWS = 65536
_SMALLEST_SCALE = 0.01  # of the median channel's


class Reader(Protocol):
    """An engine that reads features; see NativeEngine."""

    def read_features(self, tokens: Sequence[int]) -> Floats: ...  # [n, width]


def estimate(n_tokens: int, n_taps: int, n_embd: int) -> int:
    """Bytes that the features of so many tokens take."""
    return n_tokens * n_taps * n_embd * BYTES


@dataclass(frozen=True)
class _Shard:
    path: Path
    first: int  # text
    last: int  # text, exclusive
    n_rows: int
    digest: str


class Features:
    """Features of `texts` by index: torch.bfloat16 [n - 1, width], of all tokens but the last.

    `store` fills the shards; until then, and beyond the budget, each access computes. Any thread may ask.
    """

    def __init__(
        self,
        engine: Reader,
        texts: Sequence[Text],
        width: int,
        folder: Path,
        budget: int,
        identity: Mapping[str, Any],
    ) -> None:
        """width: n_taps * n_embd. folder: for the shards of this list of texts alone. budget: bytes on disk.

        identity: what features depend on besides the tokens: the target and its taps.
        """
        self._engine = engine
        self._texts = texts
        self._width = width
        self._identity = json.dumps([width, dict(identity)], sort_keys=True)
        self._folder = folder
        self._lock = threading.Lock()  # for the engine
        self._open = ExitStack()
        self._rows: dict[int, tuple[Any, int]] = {}  # by text: a shard's slice, and its first row there
        self._shards = self._plan(budget)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self._texts):
            raise IndexError(f"there is no text {index}: there are {len(self._texts)}")
        rows, first = self._rows.get(index, (None, 0))
        if rows is None:
            return self._compute(index)
        stored: torch.Tensor = rows[first : first + _n_rows(self._texts[index])]
        return stored

    def __enter__(self) -> Features:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the shards; tensors that were read from them stay valid."""
        self._rows = {}
        self._open.close()

    @property
    def n_stored(self) -> int:
        """Texts within the budget; the others are computed at each access."""
        return self._shards[-1].last if self._shards else 0

    @property
    def n_bytes(self) -> int:
        """On disk, once all within the budget are stored."""
        return sum(shard.n_rows for shard in self._shards) * self._width * BYTES

    def store(self, progress: Callable[[int, int], object] = lambda done, total: None) -> None:
        """Computes what the shards lack. A run that was killed goes on after its last whole shard.

        progress: is told the tokens done, and those of all shards.

        Raises OSError where the disk has no room; what was stored until then is kept.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_parts(self._folder)
        planned = {shard.path for shard in self._shards}
        for stale in set(self._folder.glob("features-*.safetensors")) - planned:
            stale.unlink()
        missing = [shard for shard in self._shards if not self._load(shard)]
        for shard in missing:  # of other texts, or damaged: their room is counted as free
            with suppress(FileNotFoundError):
                shard.path.unlink()
        self._check_room(sum(shard.n_rows for shard in missing) * self._width * BYTES)
        total = sum(shard.n_rows for shard in self._shards)
        done = total - sum(shard.n_rows for shard in missing)
        progress(done, total)
        for shard in missing:
            rows = torch.empty(shard.n_rows, self._width, dtype=torch.bfloat16)
            at = 0
            for index in range(shard.first, shard.last):
                n = _n_rows(self._texts[index])
                rows[at : at + n] = self._compute(index)
                at += n
                progress(done + at, total)
            data = save({"features": rows}, {"digest": shard.digest})
            write_beside(shard.path, lambda file, data=data: file.write(data))  # type: ignore[misc]
            done += shard.n_rows
            if not self._load(shard):
                raise OSError(
                    errno.EIO, f"{shard.path} can't be read back: check the disk, and run the same again"
                )

    def scale(self) -> Floats:
        """Root mean square of each channel, [width]: what features are divided by.

        Over the training texts from the first on, until they have 65,536 tokens. Channels that are nearly
        silent are taken to have a hundredth of the median one's.
        """
        squares, n = torch.zeros(self._width, dtype=torch.float64), 0
        for index, text in enumerate(self._texts):
            if text.held_out:
                continue
            rows = self[index].float()
            squares += rows.square().sum(0, dtype=torch.float64)
            n += len(rows)
            if n >= _SCALE_ROWS:
                break
        if not n:
            raise ValueError("there are no training texts to scale features by")
        scale = (squares / n).sqrt().numpy()
        smallest = _SMALLEST_SCALE * float(np.median(scale))
        return np.asarray(np.maximum(scale, smallest if smallest > 0 else 1.0), np.float32)

    # ---- shards ----

    def _plan(self, budget: int) -> list[_Shard]:
        """Consecutive texts, from the first on, that fill a shard or the budget."""
        limit = max(_SHARD_BYTES // (self._width * BYTES), 1)
        left = budget // (self._width * BYTES)
        shards: list[_Shard] = []
        first = n_rows = 0
        for index, text in enumerate(self._texts):
            n = _n_rows(text)
            if n > left:
                self._add(shards, first, index, n_rows)
                return shards
            if n_rows + n > limit and n_rows:
                self._add(shards, first, index, n_rows)
                first, n_rows = index, 0
            n_rows += n
            left -= n
        self._add(shards, first, len(self._texts), n_rows)
        return shards

    def _add(self, shards: list[_Shard], first: int, last: int, n_rows: int) -> None:
        if not n_rows:
            return
        digest = hashlib.sha256(self._identity.encode())
        for text in self._texts[first:last]:
            digest.update(f"{len(text.tokens)} ".encode())
            digest.update(text.tokens.astype("<i4").tobytes())
        path = self._folder / f"features-{len(shards):05d}.safetensors"
        shards.append(_Shard(path, first, last, n_rows, digest.hexdigest()))

    def _load(self, shard: _Shard) -> bool:
        """Maps a shard; False where it isn't there, isn't whole, or holds something else."""
        if not shard.path.exists():
            return False
        try:
            file: Any = safe_open(shard.path, framework="pt")
            rows = file.__enter__().get_slice("features")
            known = (file.metadata() or {}).get("digest") == shard.digest
            if not known or rows.get_shape() != [shard.n_rows, self._width]:
                return False
        except SafetensorError:
            return False
        self._open.push(file)
        at = 0
        for index in range(shard.first, shard.last):
            self._rows[index] = (rows, at)
            at += _n_rows(self._texts[index])
        return True

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed and needed + _SPARE_BYTES > free:
            raise OSError(
                errno.ENOSPC,
                f"features need {needed / 1e9:.2f} GB more, but {self._folder} has {free / 1e9:.2f} GB free: "
                "free space, or give them a smaller budget (what is beyond it is computed again each time)",
            )

    def _compute(self, index: int) -> torch.Tensor:
        tokens = self._texts[index].tokens[:-1]
        with self._lock:
            rows = self._engine.read_features(tokens.tolist())
        if rows.shape != (len(tokens), self._width):
            raise ValueError(f"features are {list(rows.shape)}, not [{len(tokens)}, {self._width}]")
        if not np.isfinite(rows).all():
            raise NativeError(
                f"the target's features of text {index} ({self._texts[index].source}) aren't all finite: "
                "check the target's file with pydflash2 doctor"
            )
        return torch.from_numpy(rows).to(torch.bfloat16)


def _n_rows(text: Text) -> int:
    return len(text.tokens) - 1

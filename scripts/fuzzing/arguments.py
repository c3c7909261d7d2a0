"""Random arguments for every public call of an engine: right, nearly right and absurd."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import pydflash2
from fuzzing.absurd import ABSURD, ABSURD_ITERATORS, NEAR
from fuzzing.judge import complaint
from pydflash2 import Engine
from tiny.files import TinyFiles

_CALLS = ("load", "generate", "stream", "samples", "prefill", "draft", "verify", "tokenize", "detokenize")
_SHARES = (2, 5, 3, 2, 2, 2, 2, 1, 1)


def method_of(seed: int, index: int) -> str:
    return _draw(seed, index)[0]


def _draw(seed: int, index: int) -> tuple[str, Random]:
    dice = Random(f"arguments {seed} {index}")
    known = [
        (call, share)
        for call, share in zip(_CALLS, _SHARES, strict=True)
        if call == "load" or hasattr(Engine, call)
    ]
    return dice.choices([call for call, _ in known], [share for _, share in known])[0], dice


def parameters(name: str) -> list[inspect.Parameter]:
    """What a call takes, as its signature has it today."""
    function = pydflash2.load if name == "load" else getattr(Engine, name)
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


class Caller:
    """One engine, kept over all sets: whatever it was asked, it must go on working."""

    def __init__(self, folder: Path) -> None:
        self._tiny = TinyFiles(folder)
        self._engine: Engine | None = None

    def run(self, seed: int, index: int) -> dict[str, Any]:
        """Makes one call. verdict: "works", "refused" or "unhelpful", with the call in `detail`."""
        name, dice = _draw(seed, index)
        if self._engine is None:
            self._engine = pydflash2.load(
                *self._tiny.pair("plain"), context_size=128, n_threads=1, n_gpu_layers=0
            )
        values = self._arguments(name, dice)
        call = f"{name}({', '.join(f'{key}={_brief(value)}' for key, value in values.items())})"
        verdict, detail = "works", call
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._call(name, values)
        except Exception as error:
            verdict, detail = "refused", f"{call}: {type(error).__name__}: {str(error)[:500]}"
            if why := complaint(error, [*values, "token", "prompt", "the text", "target", "context", "GPU"]):
                verdict, detail = "unhelpful", f"{why}: {detail}"
        try:
            self._engine.generate([5, 6], max_tokens=2)
        except Exception as error:
            verdict, detail = "unhelpful", f"{call} left the engine unusable: {type(error).__name__}: {error}"
            self._engine = None
        return {"verdict": verdict, "detail": detail}

    def _arguments(self, name: str, dice: Random) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if name == "load" and dice.random() < 0.9:  # else the paths are drawn too
            values["target"], values["head"] = self._tiny.pair("plain")
        given = set(values)
        if given:
            values |= {"n_threads": 1, "context_size": 128}
        # Of twenty arguments that are all drawn, one is always refused: few at a time reach further.
        takes = [parameter for parameter in parameters(name) if parameter.name not in given]
        optional = [parameter.name for parameter in takes if parameter.default is not parameter.empty]
        share = dice.choice([0.0, 0.3, 0.8])  # of absurd values
        for parameter in takes:
            if parameter.default is parameter.empty:
                values[parameter.name] = self._value(parameter.name, dice, share / 2)
        for chosen in dice.sample(optional, min(len(optional), dice.choice([0, 1, 1, 2, 3, 8]))):
            values[chosen] = self._value(chosen, dice, share)
        return values

    def _value(self, name: str, dice: Random, share: float) -> Any:
        near = NEAR.get(name, ())
        if near and dice.random() >= share:
            return dice.choice(near)
        value = dice.choice(ABSURD_ITERATORS)() if dice.random() < 0.05 else dice.choice(ABSURD)
        asks_for_ages = name == "n" and isinstance(value, (int, np.integer)) and value > 10
        return 3 if asks_for_ages else value

    def _call(self, name: str, values: dict[str, Any]) -> None:
        assert self._engine is not None
        if name == "load":
            with pydflash2.load(**values) as engine:
                engine.generate([5, 6], max_tokens=2)
            return
        if name in ("draft", "verify"):
            self._engine.prefill([5, 6, 7])
        result = getattr(self._engine, name)(**values)
        if name == "stream":
            for _, _piece in zip(range(3), result, strict=False):
                pass
            result.close()
        elif name == "draft":
            self._engine.verify(result)


def _brief(value: Any) -> str:
    try:
        text = ascii(value)
    except Exception:  # an int of 5,000 digits, a repr that raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."

"""A checkpoint's config.json, read as the reference reads it; what is missing or contradictory is refused.

Nothing is guessed: a wrong block size, window or rope base costs acceptance and says nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash2.errors import HeadFormatError

from . import keys

_LAYER_TYPES = ("sliding_attention", "full_attention")
_ROPE_TYPES = ("default", "linear", "yarn")
_YARN_SETTINGS = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")


@dataclass(frozen=True)
class RopeScaling:
    """How positions are stretched: "linear", or "yarn" with its further settings."""

    type: str
    factor: float
    original_context: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True)
class HeadConfig:
    """What a head computes. Optional values are None where the checkpoint has none."""

    version: int
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int | None  # None: as long as q_norm
    context_length: int
    rms_epsilon: float
    gelu: bool
    rope_base: float
    rope_scaling: RopeScaling | None
    rotary_factor: float | None
    interleaved_rope: bool
    block_size: int
    mask_token: int
    taps: tuple[int, ...]  # layer outputs, in the order fc takes them
    n_target_layers: int | None
    n_vocab: int | None
    n_draft_vocab: int | None
    conv_kernel: int | None
    conv_group: int | None
    rank: int | None
    top_k: int | None
    output_multiplier: float | None
    soft_cap: float | None
    embedding_scale: float | None
    window: int | None  # None: no layer has one
    sliding: tuple[bool, ...]  # [n_layer], layers of type sliding_attention
    causal: bool | None  # None: sliding layers are causal, full ones are not
    has_embedding: bool  # False: embed_tokens in the checkpoint is not the head's
    tied: bool

    @classmethod
    def read(cls, folder: Path) -> HeadConfig:
        """Reads folder/config.json. Raises `HeadFormatError`, which names the key."""
        return _Reader(folder / "config.json").read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise HeadFormatError(
                f"{path} can't be read: {error.strerror}. A head's folder has a config.json"
            ) from error
        except (ValueError, RecursionError) as error:
            raise HeadFormatError(f"{path} is not JSON: {error}. Download it again") from error
        if not isinstance(config, dict):
            raise HeadFormatError(f"{path} holds no settings: it must be a JSON object. Download it again")
        self.top: dict[str, Any] = config
        nested = config.get("dflash_config", {})
        if not isinstance(nested, dict):
            raise self.refuse("dflash_config is not an object")
        self.nested: dict[str, Any] = nested
        self.rope = self._rope()

    def refuse(self, why: str) -> HeadFormatError:
        return HeadFormatError(f"{self.path}: {why}")

    def read(self) -> HeadConfig:
        version = self._version()
        self._refuse_unsupported()
        n_layer = self._count("num_hidden_layers")
        if n_layer > keys.MAX_LAYERS:
            raise self.refuse(f"num_hidden_layers is {n_layer}: llama.cpp takes {keys.MAX_LAYERS} at most")
        n_embd = self._count("hidden_size")
        n_head = self._count("num_attention_heads")
        n_head_kv = self._count("num_key_value_heads")
        if n_head % n_head_kv:
            raise self.refuse(
                f"num_attention_heads {n_head} is no multiple of num_key_value_heads {n_head_kv}"
            )
        conv_kernel, conv_group, rank, top_k = self._dflash2(version, n_embd)
        window, sliding = self._layers(n_layer)
        return HeadConfig(
            version=version,
            n_layer=n_layer,
            n_embd=n_embd,
            n_ff=self._count("intermediate_size"),
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=self._optional_count("head_dim"),
            context_length=self._count("max_position_embeddings"),
            rms_epsilon=self._number(self.top, "rms_norm_eps", above=0.0),
            gelu=self._gelu(),
            rope_base=self._rope_base(),
            rope_scaling=self._rope_scaling(),
            rotary_factor=self._rotary_factor(),
            interleaved_rope=not self._flag("rope_is_neox_style", True),
            block_size=self._draft_count("block_size", least=2),
            mask_token=self._draft_count("mask_token_id", least=0),
            taps=self._taps(),
            n_target_layers=self._optional_count("num_target_layers"),
            n_vocab=self._optional_count("vocab_size"),
            n_draft_vocab=self._optional_count("draft_vocab_size"),
            conv_kernel=conv_kernel,
            conv_group=conv_group,
            rank=rank,
            top_k=top_k,
            output_multiplier=self._draft_number("output_multiplier"),
            soft_cap=self._soft_cap(),
            embedding_scale=self._draft_number("input_embedding_scale"),
            window=window,
            sliding=sliding,
            causal=self._causal(),
            has_embedding=self._flag("has_embed_tokens", True),
            tied=self._flag("tie_word_embeddings", False),
        )

    # ---- values ----

    def _draft_value(self, key: str) -> Any:
        """dflash_config beats the top level, also with null."""
        return self.nested[key] if key in self.nested else self.top.get(key)

    def _missing(self, key: str) -> HeadFormatError:
        if key in self.nested and key in self.top:
            return self.refuse(
                f"{key} is null in dflash_config, which counts before the top level's {self.top[key]!r}"
            )
        return self.refuse(f"{key} is missing. Take it from the head's publisher; it can't be guessed")

    def _whole(self, key: str, value: Any, least: int) -> int:
        if value is None:
            raise self._missing(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            raise self.refuse(f"{key} is {value!r}: it must be a whole number, {least} or more")
        return value

    def _count(self, key: str) -> int:
        return self._whole(key, self.top.get(key), least=1)

    def _optional_count(self, key: str) -> int | None:
        return None if self.top.get(key) is None else self._count(key)

    def _draft_count(self, key: str, least: int = 1) -> int:
        return self._whole(key, self._draft_value(key), least)

    def _number(self, settings: dict[str, Any], key: str, above: float = -math.inf) -> float:
        value = settings.get(key)
        if value is None:
            raise self._missing(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value < math.inf:
            least = "" if above == -math.inf else f" above {above:g}"
            raise self.refuse(f"{key} is {value!r}: it must be a number{least}")
        return float(value)

    def _draft_number(self, key: str) -> float | None:
        value = self._draft_value(key)
        return None if value is None else self._number({key: value}, key)

    def _flag(self, key: str, default: bool) -> bool:
        value = self.top.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(f"{key} is {value!r}: it must be true or false")
        return value

    # ---- what kind of head ----

    def _version(self) -> int:
        architectures = self.top.get("architectures")
        name = (
            architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
        )
        if name in keys.VARIANT_ARCHITECTURES:
            raise self.refuse(
                f"{name} is a DSpark head, with a Markov head that this build has no arithmetic for"
            )
        if not isinstance(name, str) or name not in keys.ARCHITECTURE_VERSIONS:
            known = " or ".join(keys.ARCHITECTURE_VERSIONS)
            raise self.refuse(f"architectures is {architectures!r}: a head's is {known}")
        return keys.ARCHITECTURE_VERSIONS[name]

    def _refuse_unsupported(self) -> None:
        for key, meaning in keys.UNSUPPORTED_SETTINGS.items():
            for settings in (self.nested, self.top):
                if settings.get(key) not in (None, False):
                    raise self.refuse(f"{key} stands for {meaning}, which this build can't convert")
        if self._flag("attention_bias", False):
            raise self.refuse("attention_bias is true: a DFlash head's projections have no bias")

    def _dflash2(self, version: int, n_embd: int) -> tuple[int | None, int | None, int | None, int | None]:
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        if version == 1:
            if present := [name for name in names if self._draft_value(name) is not None]:
                raise self.refuse(f"architectures says DFlash 1, but {present[0]} belongs to DFlash 2")
            return None, None, None, None
        kernel, group, rank, top_k = (self._draft_count(name) for name in names)
        if n_embd % group:
            raise self.refuse(f"hidden_size {n_embd} is no multiple of conv_group_size {group}")
        return kernel, group, rank, top_k

    def _gelu(self) -> bool:
        activation = self.top.get("hidden_act")
        if activation is None:
            raise self._missing("hidden_act")
        if activation not in ("silu", "gelu_pytorch_tanh"):
            raise self.refuse(f"hidden_act is {activation!r}: this build has silu and gelu_pytorch_tanh")
        return bool(activation == "gelu_pytorch_tanh")

    def _taps(self) -> tuple[int, ...]:
        taps = self._draft_value("target_layer_ids")
        if taps is None:
            raise self._missing("target_layer_ids")
        if not isinstance(taps, list) or not taps:
            raise self.refuse(f"target_layer_ids is {taps!r}: it must list the target's layers that fc reads")
        return tuple(self._whole("target_layer_ids", tap, least=0) for tap in taps)

    def _soft_cap(self) -> float | None:
        cap = self._draft_number("final_logit_softcapping")
        return cap if cap is not None and cap > 0 else None  # the reference leaves out a cap of 0 too

    # ---- attention ----

    def _layers(self, n_layer: int) -> tuple[int | None, tuple[bool, ...]]:
        types = self.top.get("layer_types")
        use_window = self.top.get("use_sliding_window")
        if types is None:
            if use_window:
                raise self.refuse(
                    "use_sliding_window is true, but layer_types, which names the sliding layers, is missing"
                )
            return None, (False,) * n_layer
        if not isinstance(types, list) or len(types) != n_layer:
            raise self.refuse(
                f"layer_types must name the type of each of the {n_layer} layers, got {types!r}"
            )
        for name in types:
            if name not in _LAYER_TYPES:
                raise self.refuse(f"layer_types holds {name!r}: a layer is {' or '.join(_LAYER_TYPES)}")
        sliding = tuple(name == "sliding_attention" for name in types)
        if any(sliding) and use_window is None and self.top.get("sliding_window") is not None:
            raise self.refuse(
                "use_sliding_window is missing, and with it whether the sliding_window of "
                f"{self.top['sliding_window']!r} counts. Set it to true or false"
            )
        if not self._flag("use_sliding_window", False):
            return None, sliding
        window = self._count("sliding_window") if any(sliding) else self._optional_count("sliding_window")
        return window, sliding

    def _causal(self) -> bool | None:
        found = {
            name: settings[key]
            for name, settings, key in (
                ("is_causal", self.top, "is_causal"),
                ("dflash_config.is_causal", self.nested, "is_causal"),
                ("dflash_config.causal", self.nested, "causal"),
            )
            if settings.get(key) is not None
        }
        for name, value in found.items():
            if not isinstance(value, bool):
                raise self.refuse(f"{name} is {value!r}: it must be true or false")
        if len(set(found.values())) > 1:
            raise self.refuse(f"{' and '.join(found)} contradict each other: {found}")
        return next(iter(found.values()), None)

    # ---- rope ----

    def _rope(self) -> dict[str, Any]:
        """rope_parameters, or the older rope_scaling, at the top level or in dflash_config."""
        found = [
            settings[key]
            for settings in (self.nested, self.top)
            for key in ("rope_parameters", "rope_scaling")
            if settings.get(key) is not None
        ]
        for rope in found:
            if not isinstance(rope, dict) or rope != found[0]:
                raise self.refuse("rope_parameters and rope_scaling contradict each other")
        return found[0] if found else {}

    def _rope_base(self) -> float:
        """The nested base counts before a flat one."""
        for settings in (self.rope, self.nested, self.top):
            if settings.get("rope_theta") is not None:
                return self._number(settings, "rope_theta", above=0.0)
        raise self.refuse("rope_theta is missing, in rope_parameters and beside it. It can't be guessed")

    def _rope_scaling(self) -> RopeScaling | None:
        rope = self.rope
        for nested in ("full_attention", "sliding_attention", "mrope_section"):
            if nested in rope:
                raise self.refuse(
                    f"rope_parameters has {nested}: a head has one rope for all layers, on token positions"
                )
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPE_TYPES:
            raise self.refuse(f"rope_type is {kind!r}: this build has {', '.join(_ROPE_TYPES)}")
        if kind == "default":
            return None
        factor = self._number(rope, "factor", above=0.0)
        if kind == "linear":
            return RopeScaling(kind, factor)
        known = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *_YARN_SETTINGS}
        if unknown := sorted(set(rope) - known):
            raise self.refuse(
                f"rope_parameters has {unknown[0]}, a setting of yarn that no GGUF key stands for"
            )
        return RopeScaling(
            kind,
            factor,
            self._whole(
                "original_max_position_embeddings", rope.get("original_max_position_embeddings"), least=1
            ),
            self._number(rope, "beta_fast") if rope.get("beta_fast") is not None else None,
            self._number(rope, "beta_slow") if rope.get("beta_slow") is not None else None,
        )

    def _rotary_factor(self) -> float | None:
        for settings in (self.rope, self.top):
            if settings.get("partial_rotary_factor") is not None:
                factor = self._number(settings, "partial_rotary_factor", above=0.0)
                if factor > 1:
                    raise self.refuse(f"partial_rotary_factor is {factor:g}: it must be at most 1")
                if factor < 1 and not self._flag("rope_is_neox_style", True):
                    raise self.refuse(
                        "partial_rotary_factor with interleaved rope has no counterpart in a GGUF head"
                    )
                return factor
        return None

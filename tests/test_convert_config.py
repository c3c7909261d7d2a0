"""Reading config.json: the reference's order of precedence, and every refusal."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import CONFIG_2, save_checkpoint, save_target
from pydflash2.convert import convert
from pydflash2.convert.config import HeadConfig, RopeScaling
from pydflash2.errors import HeadFormatError
from pydflash2.gguf_file import GGUFFile

ABSENT = object()


def read(tmp_path: Path, config: Any) -> HeadConfig:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return HeadConfig.read(tmp_path)


def changed(
    top: dict[str, Any] | None = None, nested: dict[str, Any] | None = None, base: Any = CONFIG_2
) -> Any:
    """The config with other settings; ABSENT takes one away."""
    config = copy.deepcopy(base)
    for settings, changes in ((config, top or {}), (config["dflash_config"], nested or {})):
        for key, value in changes.items():
            if value is ABSENT:
                settings.pop(key, None)
            else:
                settings[key] = value
    return config


def test_a_whole_config(tmp_path: Path) -> None:
    config = read(tmp_path, CONFIG_2)
    assert (config.version, config.n_layer, config.n_embd, config.n_ff) == (2, 2, 32, 48)
    assert (config.n_head, config.n_head_kv, config.head_dim) == (3, 1, 16)
    assert (config.block_size, config.mask_token, config.taps) == (6, 5, (1, 4))
    assert (config.conv_kernel, config.conv_group, config.rank, config.top_k) == (2, 8, 8, 4)
    assert (config.output_multiplier, config.soft_cap, config.embedding_scale) == (0.25, 20.0, 1.5)
    assert (config.window, config.sliding, config.causal) == (24, (True, False), False)
    assert (config.rope_base, config.rope_scaling, config.rotary_factor) == (50000.0, None, None)


# ---- precedence ----


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("block_size", "block_size"),
        ("mask_token_id", "mask_token"),
        ("conv_kernel_size", "conv_kernel"),
        ("selector_rank", "rank"),
        ("selector_top_k", "top_k"),
        ("output_multiplier", "output_multiplier"),
        ("final_logit_softcapping", "soft_cap"),
        ("input_embedding_scale", "embedding_scale"),
    ],
)
def test_dflash_config_beats_the_top_level_which_serves_where_it_is_silent(
    key: str, field: str, tmp_path: Path
) -> None:
    assert getattr(read(tmp_path, changed({key: 3}, {key: 7})), field) == 7
    assert getattr(read(tmp_path, changed({key: 3}, {key: ABSENT})), field) == 3


def test_taps_may_sit_at_either_level(tmp_path: Path) -> None:
    config = changed({"target_layer_ids": [2, 0, 2]}, {"target_layer_ids": ABSENT})
    assert read(tmp_path, config).taps == (2, 0, 2)


def test_null_in_dflash_config_does_not_fall_back(tmp_path: Path) -> None:
    assert (
        read(tmp_path, changed({"final_logit_softcapping": 30.0}, {"final_logit_softcapping": None})).soft_cap
        is None
    )
    with pytest.raises(HeadFormatError, match=r"block_size is null in dflash_config, .* top level's 16"):
        read(tmp_path, changed({"block_size": 16}, {"block_size": None}))


def test_a_nested_rope_base_beats_a_flat_one(tmp_path: Path) -> None:
    assert read(tmp_path, changed({"rope_theta": 1e6})).rope_base == 50000.0
    flat = changed({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}})
    assert read(tmp_path, flat).rope_base == 1e6
    older = changed({"rope_parameters": ABSENT, "rope_scaling": {"rope_theta": 2e6, "type": "default"}})
    assert read(tmp_path, older).rope_base == 2e6
    inside = changed({"rope_parameters": ABSENT}, {"rope_parameters": {"rope_theta": 3e6}})
    assert read(tmp_path, inside).rope_base == 3e6


def test_rope_scaling(tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "rope_type": "linear", "factor": 2}
    assert read(tmp_path, changed({"rope_parameters": rope})).rope_scaling == RopeScaling("linear", 2.0)
    rope = {
        "rope_theta": 1e4,
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 128,
        "beta_fast": 16,
    }
    scaling = read(tmp_path, changed({"rope_parameters": rope})).rope_scaling
    assert scaling == RopeScaling("yarn", 4.0, 128, 16.0, None)


@pytest.mark.parametrize("cap", [0, -1.0, None])
def test_no_soft_cap(cap: Any, tmp_path: Path) -> None:
    assert read(tmp_path, changed(nested={"final_logit_softcapping": cap})).soft_cap is None


# ---- windows and causality ----


def test_without_a_window_layers_keep_their_types(tmp_path: Path) -> None:
    config = read(tmp_path, changed({"use_sliding_window": False}))
    assert (config.window, config.sliding) == (None, (True, False))


def test_without_layer_types_no_layer_slides(tmp_path: Path) -> None:
    config = read(tmp_path, changed({"layer_types": ABSENT, "use_sliding_window": False}))
    assert (config.window, config.sliding) == (None, (False, False))


@pytest.mark.parametrize(
    ("top", "nested", "causal"),
    [
        ({"is_causal": True}, {}, True),
        ({"is_causal": ABSENT}, {}, None),
        ({"is_causal": None}, {}, None),
        ({"is_causal": ABSENT}, {"causal": False}, False),
        ({"is_causal": False}, {"causal": False, "is_causal": False}, False),
    ],
)
def test_causality(top: dict[str, Any], nested: dict[str, Any], causal: bool | None, tmp_path: Path) -> None:
    assert read(tmp_path, changed(top, nested)).causal is causal


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("types", "use_window", "is_causal", "key", "pattern"),
    [
        ([SLIDING, FULL], True, False, False, None),
        ([SLIDING, FULL], True, True, True, None),
        ([SLIDING, FULL], True, ABSENT, None, None),  # the window's pattern says it
        ([FULL, FULL], False, ABSENT, None, None),
        ([SLIDING, SLIDING], False, ABSENT, True, None),
        ([SLIDING, FULL], False, ABSENT, None, [True, False]),
    ],
)
def test_how_the_file_says_which_layers_are_causal(
    types: list[str],
    use_window: bool,
    is_causal: Any,
    key: bool | None,
    pattern: list[bool] | None,
    tmp_path: Path,
) -> None:
    """The reference: with the key all or none, without it the sliding ones, be there a window or not."""
    config = changed({"layer_types": types, "use_sliding_window": use_window, "is_causal": is_causal})
    file = GGUFFile.open(
        convert(save_checkpoint(tmp_path / "head", config), save_target(tmp_path / "t.gguf"))
    )
    assert file.value("dflash.attention.causal") is key
    assert file.array("pydflash2.attention.causal_pattern") == pattern
    assert file.integer("dflash.attention.sliding_window") == (24 if use_window else None)
    assert file.array("dflash.attention.sliding_window_pattern") == ([True, False] if use_window else None)


def test_partial_rotary_and_gelu_reach_the_file(tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}
    config = changed({"rope_parameters": rope, "hidden_act": "gelu_pytorch_tanh"})
    file = GGUFFile.open(
        convert(save_checkpoint(tmp_path / "head", config), save_target(tmp_path / "t.gguf"))
    )
    assert file.integer("dflash.rope.dimension_count") == 8
    assert file.text("dflash.hidden_activation") == "gelu_pytorch_tanh"


# ---- refusals ----

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hidden_size is missing. Take it from the head's publisher": ({"hidden_size": ABSENT}, {}),
    "intermediate_size is missing": ({"intermediate_size": ABSENT}, {}),
    "num_hidden_layers is missing": ({"num_hidden_layers": ABSENT}, {}),
    "num_attention_heads is missing": ({"num_attention_heads": ABSENT}, {}),
    "num_key_value_heads is missing": ({"num_key_value_heads": ABSENT}, {}),
    "max_position_embeddings is missing": ({"max_position_embeddings": ABSENT}, {}),
    "rms_norm_eps is missing": ({"rms_norm_eps": ABSENT}, {}),
    "hidden_act is missing": ({"hidden_act": ABSENT}, {}),
    "rope_theta is missing, in rope_parameters and beside it": ({"rope_parameters": ABSENT}, {}),
    "block_size is missing": ({}, {"block_size": ABSENT}),
    "mask_token_id is missing": ({}, {"mask_token_id": ABSENT}),
    "target_layer_ids is missing": ({}, {"target_layer_ids": ABSENT}),
    "conv_group_size is missing": ({}, {"conv_group_size": ABSENT}),
    "selector_top_k is missing": ({}, {"selector_top_k": ABSENT}),
    "sliding_window is missing": ({"sliding_window": None}, {}),
    "use_sliding_window is missing, and with it whether the sliding_window of 24 counts": (
        {"use_sliding_window": ABSENT},
        {},
    ),
    "use_sliding_window is true, but layer_types": ({"layer_types": ABSENT}, {}),
    "layer_types must name the type of each of the 2 layers": ({"layer_types": [SLIDING]}, {}),
    "layer_types holds 'chunked_attention'": ({"layer_types": [FULL, "chunked_attention"]}, {}),
    "num_attention_heads 3 is no multiple of num_key_value_heads 2": ({"num_key_value_heads": 2}, {}),
    "hidden_size 32 is no multiple of conv_group_size 5": ({}, {"conv_group_size": 5}),
    "block_size is 1: it must be a whole number, 2 or more": ({}, {"block_size": 1}),
    "hidden_size is '32': it must be a whole number": ({"hidden_size": "32"}, {}),
    "num_hidden_layers is True: it must be a whole number": ({"num_hidden_layers": True}, {}),
    "num_hidden_layers is 513: llama.cpp takes 512 at most": ({"num_hidden_layers": 513}, {}),
    "mask_token_id is 2.5: it must be a whole number, 0 or more": ({}, {"mask_token_id": 2.5}),
    "target_layer_ids is []: it must list the target's layers": ({}, {"target_layer_ids": []}),
    "target_layer_ids is -1: it must be a whole number": ({}, {"target_layer_ids": [-1]}),
    "rms_norm_eps is 0: it must be a number above 0": ({"rms_norm_eps": 0}, {}),
    "output_multiplier is 'x': it must be a number": ({}, {"output_multiplier": "x"}),
    "attention_bias is true: a DFlash head's projections have no bias": ({"attention_bias": True}, {}),
    "use_sliding_window is 1: it must be true or false": ({"use_sliding_window": 1}, {}),
    "is_causal is 'no': it must be true or false": ({"is_causal": "no"}, {}),
    "is_causal and dflash_config.causal contradict each other": ({}, {"causal": True}),
    "rope_parameters and rope_scaling contradict each other": (
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {},
    ),
    "rope_type is 'llama3': this build has default, linear, yarn": (
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}},
        {},
    ),
    "factor is missing": ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, {}),
    "original_max_position_embeddings is missing": (
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2}},
        {},
    ),
    "rope_parameters has attention_factor, a setting of yarn that no GGUF key stands for": (
        {
            "rope_parameters": {
                "rope_theta": 1e4,
                "rope_type": "yarn",
                "factor": 2,
                "original_max_position_embeddings": 9,
                "attention_factor": 1.2,
            }
        },
        {},
    ),
    "rope_parameters has full_attention: a head has one rope": (
        {"rope_parameters": {"rope_theta": 1e4, "full_attention": {}}},
        {},
    ),
    "partial_rotary_factor is 1.5: it must be at most 1": ({"partial_rotary_factor": 1.5}, {}),
    "partial_rotary_factor with interleaved rope": (
        {"partial_rotary_factor": 0.5, "rope_is_neox_style": False},
        {},
    ),
    "hidden_act is 'relu': this build has silu and gelu_pytorch_tanh": ({"hidden_act": "relu"}, {}),
    "architectures is None: a head's is DFlashDraftModel or DFlash2DraftModel": (
        {"architectures": ABSENT},
        {},
    ),
    "architectures is ['Qwen3ForCausalLM']": ({"architectures": ["Qwen3ForCausalLM"]}, {}),
    "Qwen3DSparkModel is a DSpark head": ({"architectures": ["Qwen3DSparkModel"]}, {}),
    "architectures says DFlash 1, but conv_kernel_size belongs to DFlash 2": (
        {"architectures": ["DFlashDraftModel"]},
        {},
    ),
    "use_swa stands for its own way to name sliding layers": ({}, {"use_swa": True}),
    "attention_value_scale stands for a scale on attention's values": ({}, {"attention_value_scale": 0.7}),
    "quantization_config stands for weights that are quantised already": (
        {"quantization_config": {"bits": 4}},
        {},
    ),
    "num_experts stands for a mixture of experts": ({"num_experts": 8}, {}),
    "dflash_config is not an object": ({"dflash_config": [1]}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_missing_or_contradictory_is_refused_by_name(message: str, tmp_path: Path) -> None:
    top, nested = REFUSED[message]
    with pytest.raises(HeadFormatError) as caught:
        read(tmp_path, changed(top, nested) if "dflash_config" not in top else {**CONFIG_2, **top})
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_config_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(
        HeadFormatError, match=r"config.json can't be read: .*A head's folder has a config.json"
    ):
        HeadConfig.read(tmp_path)
    with pytest.raises(HeadFormatError, match=r"config.json is not JSON: "):
        read(tmp_path, "{")
    with pytest.raises(HeadFormatError, match=r"config.json is not JSON: "):
        read(tmp_path, "[" * 100_000)
    with pytest.raises(HeadFormatError, match="it must be a JSON object"):
        read(tmp_path, "[]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*CONFIG_2, "rope_theta", "rope_scaling", "is_causal", "draft_vocab_size", "has_embed_tokens"]
)
NESTED_KEYS = st.sampled_from([*CONFIG_2["dflash_config"], "causal", "rope_parameters", "rope_theta"])


@given(top=st.dictionaries(KEYS, JSON, max_size=3), nested=st.dictionaries(NESTED_KEYS, JSON, max_size=3))
def test_whatever_a_config_holds_it_is_read_or_refused(
    top: dict[str, Any], nested: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = {**CONFIG_2, "dflash_config": {**CONFIG_2["dflash_config"], **nested}, **top}
    try:
        found = read(tmp_path_factory.getbasetemp(), config)
    except HeadFormatError:
        return
    assert found.block_size >= 2
    assert len(found.sliding) == found.n_layer
    assert math.isfinite(found.rope_base)

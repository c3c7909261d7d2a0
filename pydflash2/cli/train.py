"""`pydflash2 train`: prompts in, a head for the target out."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydflash2
from pydflash2 import arguments

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pydflash2.train.options import Options


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "train",
        help="train a head for a target that has none",
        description="Train a DFlash 2 head for any GGUF target: the target continues the prompts, and a head "
        "learns to foresee what it writes. The folder that --out names gets the checkpoint in the published "
        "layout (config.json, model.safetensors), head.gguf, a model card, a report with curves, and every "
        "figure as JSON. The same command goes on where an earlier one was broken off. Needs PyTorch: pip "
        "install 'pydflash2[train]'.",
    )
    parser.add_argument(
        "--target",
        "-m",
        type=Path,
        required=True,
        metavar="FILE",
        help="target, a GGUF file",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        action="append",
        required=True,
        metavar="PATH",
        help="a .txt with one prompt a line, a .jsonl with {prompt}, {text} or {messages}, a document, "
        "or a folder of documents; may be repeated",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of all that is made")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="of training, writing and measuring apart (default 60)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="instead of minutes; two runs with one seed give the same head"
    )
    parser.add_argument(
        "--init",
        type=Path,
        metavar="HEAD",
        help="go on from this DFlash 1 or 2 head: a folder or GGUF",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of prompts, texts, weights and batches (1)",
    )

    data = parser.add_argument_group("data")
    _add_numbers(data, _DATA)
    data.add_argument(
        "--prompt-tokens",
        type=_whole_numbers,
        metavar="N,N,...",
        help="sizes of prompts cut from documents (default: 8 to 128)",
    )
    data.add_argument("--suffix", action="append", metavar=".EXT", help="read only such files of a folder")
    data.add_argument("--chat", action="store_true", help="prompts of plain text are a user's messages")
    data.add_argument(
        "--held-out",
        type=Path,
        action="append",
        metavar="PATH",
        help="prompts to measure with, instead of a share of the others",
    )
    data.add_argument(
        "--temp",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="temperatures of texts that aren't greedy (default 0.7 1.0)",
    )

    head = parser.add_argument_group("geometry (defaults fit the target)")
    _add_numbers(head, _GEOMETRY)
    head.add_argument(
        "--taps", type=_whole_numbers, metavar="L,L,...", help="layers of the target that are read"
    )
    head.add_argument("--full-attention", action="store_true", help="no layer has a window")

    how = parser.add_argument_group("training")
    _add_numbers(how, _TRAINING)
    how.add_argument("--optimiser", choices=["muon", "adamw"], help="for the matrices (default muon)")
    how.add_argument("--weighting", choices=["decay", "d-pace"], help="of positions (default decay)")
    how.add_argument(
        "--missing-gold",
        choices=["skip", "insert"],
        help="a token outside the best K (default skip: no selector loss)",
    )
    how.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda|mps", help="of PyTorch (default auto)"
    )
    how.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")

    output = parser.add_argument_group("output")
    output.add_argument(
        "--outtype", default="f16", help="of head.gguf: f32, f16, bf16, q8_0, q4_k_m ... (default f16)"
    )
    output.add_argument("--name", help="of the head, for its model card (default: the target's)")
    output.add_argument("--license", metavar="ID", help="of the head, as Hugging Face has it")
    output.add_argument("--license-name", metavar="NAME", help="where --license is other")
    output.add_argument("--license-link", metavar="URL", help="where --license is other")
    output.add_argument("--base-model", metavar="OWNER/NAME", help="the target's repository on Hugging Face")
    output.add_argument("--json", action="store_true", help="the final figures as JSON on stdout")
    return parser


def _add_numbers(group: argparse._ArgumentGroup, numbers: Sequence[tuple[str, str, type, str]]) -> None:
    for flag, name, kind, text in numbers:
        group.add_argument(flag, dest=name, type=kind, metavar="N" if kind is int else "X", help=text)


# Flag, field, type, help. A flag that is not given leaves the field's default.
_DATA = (
    ("--tokens", "n_tokens", int, "tokens the target writes (default 500,000)"),
    ("--data-minutes", "data_minutes", float, "minutes of writing at most (default: no limit)"),
    ("--new-tokens", "new_tokens", int, "of one text at most (default 256)"),
    ("--n-prompts", "n_prompts", int, "prompts taken (default: all; of documents what the tokens need)"),
    (
        "--longest-prompt",
        "longest_prompt",
        int,
        "tokens of a list's prompts; longer ones are left out (1024)",
    ),
    ("--held-out-share", "held_out_share", float, "of the prompts, to measure with (default 0.05)"),
    ("--parallel", "n_parallel", int, "texts written side by side (default 32)"),
    ("--greedy-share", "greedy_share", float, "of texts written greedily (default 0.5)"),
    ("--top-k", "top_k", int, "of texts that aren't greedy (default 0: all)"),
    ("--top-p", "top_p", float, "of texts that aren't greedy (default 1)"),
    ("--min-p", "min_p", float, "of texts that aren't greedy (default 0)"),
    (
        "--feature-budget",
        "feature_budget",
        float,
        "GB of features on disk (default 20); the rest is recomputed",
    ),
)
_GEOMETRY = (
    ("--layers", "n_layer", int, "layers"),
    ("--block-size", "block_size", int, "rows of a block: drafted tokens and the anchor"),
    ("--window", "window", int, "positions a layer sees"),
    ("--heads", "n_head", int, "query heads"),
    ("--kv-heads", "n_head_kv", int, "key and value heads"),
    ("--head-dim", "head_dim", int, "values of a head"),
    ("--feed-forward", "n_ff", int, "width of the feed-forward part"),
    ("--rank", "rank", int, "of the selector"),
    ("--candidates", "top_k", int, "K, candidates of a position"),
    ("--conv-kernel", "conv_kernel", int, "rows a convolution sees"),
    ("--conv-group", "conv_group", int, "channels that share a dynamic kernel"),
    ("--mask-token", "mask_token", int, "token of rows that are to be drafted"),
)

_TRAINING = (
    ("--texts", "n_texts", int, "texts of a batch (default 4)"),
    ("--anchors", "n_anchors", int, "blocks of each (default 48)"),
    ("--accumulate", "parts", int, "batches of a step (default 2)"),
    ("--prompt-share", "prompt_share", float, "of blocks, in the prompts (default 0)"),
    ("--rate", "rate", float, "AdamW's peak learning rate (default 2e-3)"),
    ("--muon-rate", "muon_rate", float, "Muon's (default 0.02)"),
    ("--warm-up", "warm_up", float, "share of the run (default 0.04)"),
    ("--decay", "decay", float, "positions until a weight falls to 1/e (default 4)"),
    ("--pace-alpha", "pace_alpha", float, "D-PACE's smoothing (default 0.5)"),
    ("--teacher", "teacher", float, "share of the target's distribution in the labels (default 0.5)"),
    ("--selector-weight", "selector_weight", float, "of its loss (default 1)"),
    ("--shortlist", "shortlist", int, "tokens the loss is over (default: 8192 where there are many more)"),
    ("--patience", "patience", int, "looks without a better head (default 12; 0: no end)"),
    (
        "--look-every",
        "look_every",
        float,
        "minutes between looks at held-out texts (default 2; shorter in a short run)",
    ),
    ("--measure-every", "every", float, "minutes between real rounds in the engine (default 5)"),
    ("--threads", "n_threads", int, "CPU threads (default: one a core)"),
    ("--n-gpu-layers", "n_gpu_layers", int, "of the target (default: all)"),
)


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("safetensors") is None:
        raise pydflash2.PyDFlash2Error(
            "training needs PyTorch and safetensors: pip install 'pydflash2[train]'"
        )
    from pydflash2.train.run import train

    options = _options(args)
    result = train(options, lambda text: print(f"pydflash2: {text}", file=sys.stderr))
    print(result.as_json() if args.json else result)
    return 0


def _options(args: argparse.Namespace) -> Options:
    from pydflash2.train.card import Terms
    from pydflash2.train.options import DataOptions, Options

    geometry = _present(args, (name for _, name, _, _ in _GEOMETRY)) | _present(args, ("taps",))
    if args.full_attention:
        if args.window is not None:
            raise ValueError("--full-attention and --window contradict each other: give one")
        geometry["window"] = None
    if args.minutes is not None and args.steps is not None:
        raise ValueError("--minutes and --steps contradict each other: give one")
    options = Options(args.target, args.out, DataOptions(tuple(args.prompts)), geometry, args.init)
    data = {
        "held_out_paths": args.held_out,
        "held_out": args.held_out_share,
        "suffixes": args.suffix,
        "as_chat": args.chat or None,
        "minutes": args.data_minutes,
        "prompt_sizes": args.prompt_tokens,
        "temperatures": args.temp,
        "feature_budget": None if args.feature_budget is None else int(args.feature_budget * 1e9),
    }
    loop: dict[str, Any] = {} if args.steps is None else {"minutes": None, "steps": args.steps}
    if args.minutes is not None:
        loop["minutes"] = args.minutes
    return replace(
        options,
        data=_changed(options.data, args, {name: _tuple(value) for name, value in data.items()}),
        objective=_changed(options.objective, args),
        batch=_changed(options.batch, args),
        optimiser=_changed(options.optimiser, args, {"kind": args.optimiser}),
        loop=replace(_changed(options.loop, args, {"minutes": None, "steps": None}), **loop),
        measure=_changed(options.measure, args),
        device=args.device,
        precision=args.precision,
        n_threads=args.n_threads,
        n_gpu_layers=-1 if args.n_gpu_layers is None else args.n_gpu_layers,
        seed=arguments.integer("--seed", args.seed, 0),
        outtype=args.outtype,
        terms=Terms(args.license, args.license_name, args.license_link, args.base_model),
        name=args.name,
    )


def _present(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _changed(settings: Any, args: argparse.Namespace, values: Mapping[str, Any] | None = None) -> Any:
    """The settings with what the user gave: `values`, and arguments that are called like a field."""
    named = {field.name: getattr(args, field.name, None) for field in fields(settings)} | dict(values or {})
    return replace(settings, **{name: value for name, value in named.items() if value is not None})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, such as 1,5,9") from None

"""`pydflash2 generate`: a prompt in, its continuation out."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pydflash2
from pydflash2.results import Stats

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "generate",
        help="continue a text",
        description="Continue a text: what the target alone would write, sooner. The text streams to "
        "stdout, one line of statistics goes to stderr. Without -m, the small demo pair inside the package "
        "writes Python.",
    )
    given = parser.add_argument_group("prompt (one of these, or stdin)")
    given.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue")
    given.add_argument("-p", "--prompt", dest="prompt_option", metavar="PROMPT", help="the same")
    given.add_argument(
        "-f", "--file", metavar="FILE", help="a file with it, - for stdin; a newline at its end is dropped"
    )

    models = parser.add_argument_group("models")
    models.add_argument("-m", "--model", metavar="FILE", help="target, a GGUF file (default: the demo pair)")
    models.add_argument(
        "-d",
        "--head",
        metavar="FILE",
        default="auto",
        help="head, a GGUF file (default: the dflash-<Model>-*.gguf beside the target, if there is one)",
    )
    models.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        default=0,
        metavar="N",
        help="tokens a text can have, prompt included (default: the length trained on, 8192 at most)",
    )
    models.add_argument("-t", "--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    models.add_argument(
        "-ngl",
        "--n-gpu-layers",
        type=_gpu_layers,
        default=-1,
        metavar="N",
        help="layers on the GPU (default: all, where there is one)",
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "-n",
        "--predict",
        type=int,
        default=-1,
        metavar="N",
        help="tokens at most (default: until the context ends)",
    )
    output.add_argument("--stop", action="append", metavar="TEXT", help="end before TEXT; may be repeated")
    output.add_argument(
        "--max-draft-tokens",
        type=_width,
        default="auto",
        metavar="N|auto",
        help="tokens drafted a round, anchor not counted (default auto: as many as the head was made for)",
    )
    output.add_argument("--no-speculate", action="store_true", help="decode without the head")
    output.add_argument("--stats", action="store_true", help="all statistics on stderr")
    output.add_argument("--json", action="store_true", help="text, tokens and statistics as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    prompt = _prompt(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal can't show
    with pydflash2.load(
        args.model,
        args.head,
        context_size=args.ctx_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
    ) as engine:
        stream = engine.stream(
            prompt,
            max_tokens=None if args.predict == -1 else args.predict,
            max_draft_tokens=args.max_draft_tokens,
            stop=args.stop,
            speculate=not args.no_speculate,
        )
        text, tokens, reason, stats = "", [], None, None
        try:
            for piece in stream:
                text += piece.text
                tokens += piece.tokens
                reason, stats = piece.finish_reason, piece.stats
                if not args.json:
                    sys.stdout.write(piece.text)
                    sys.stdout.flush()
        finally:  # after Ctrl-C too, so that the shell's prompt gets its own line
            if not args.json and text and not text.endswith("\n") and sys.stdout.isatty():
                print(flush=True)
    assert stats is not None  # the last piece has them
    if args.json:
        record = {"text": text, "tokens": tokens, "finish_reason": reason, "stats": stats.as_dict()}
        print(json.dumps(record, ensure_ascii=False), flush=True)
    print(_summary(stats), file=sys.stderr)
    if args.stats:
        print(_table(stats), file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    given = [value for value in (args.prompt, args.prompt_option, args.file) if value is not None]
    if len(given) > 1:
        raise ValueError("more than one prompt: give PROMPT, -p or -f, one of them")
    if args.file is None and given:
        return str(given[0])
    if args.file is None and sys.stdin.isatty():
        raise ValueError("no prompt: give it as an argument, with -f FILE, or on stdin")
    source = "stdin" if args.file in (None, "-") else args.file
    data = sys.stdin.buffer.read() if source == "stdin" else Path(source).read_bytes()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} isn't UTF-8 text (byte {error.start}): convert it first") from None


def _summary(stats: Stats) -> str:
    tokens = f"{stats.generated_tokens} token{'s' if stats.generated_tokens != 1 else ''}"
    speed = f"{stats.tokens_per_second:.1f} tok/s"
    if not stats.drafting.startswith("on"):
        return f"{tokens}, plain decoding ({stats.drafting.removeprefix('off: ')}), {speed}"
    acceptance = f"mean acceptance length {stats.mean_acceptance_length:.2f}"
    return f"{tokens}, {stats.rounds} round{'s' if stats.rounds != 1 else ''}, {acceptance}, {speed}"


def _table(stats: Stats) -> str:
    positions = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
    rows = {
        "drafting": stats.drafting,
        "width": f"{stats.max_draft_tokens} drafted tokens a round",
        "prompt": f"{stats.prompt_tokens} tokens, {stats.reused_tokens} of them reused",
        "accepted": f"{stats.accepted} of {stats.drafted} drafted tokens, {stats.draft_acceptance_rate:.1%}",
        "by position": positions or "-",
        "prefill": f"{stats.prefill_seconds:.3f} s",
        "draft": f"{stats.draft_seconds:.3f} s",
        "verify": f"{stats.verify_seconds:.3f} s",
    }
    return "\n".join(f"  {name:12} {value}" for name, value in rows.items())


def _width(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def _gpu_layers(text: str) -> int:
    if text in ("all", "auto"):
        return -1
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all") from None

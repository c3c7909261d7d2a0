"""`pydflash2 generate`: a prompt in, its continuation out."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydflash2.cli.models import add_models, load, say_where
from pydflash2.results import DrafterStats, Piece, Result, Stats
from pydflash2.settings import LOOKUPS, Settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_SAMPLING: tuple[tuple[str, str, Any, str, str], ...] = (
    ("--temp", "temperature", float, "T", "temperature (default 0: greedy)"),
    ("--top-k", "top_k", int, "K", "draw from the K likeliest tokens (default 0: all)"),
    ("--typical", "typical_p", float, "P", "locally typical sampling (default 1: off)"),
    (
        "--top-p",
        "top_p",
        float,
        "P",
        "draw from the likeliest tokens up to this probability (default 1: all)",
    ),
    ("--min-p", "min_p", float, "P", "drop tokens below this share of the likeliest one (default 0: none)"),
    ("--repeat-penalty", "repeat_penalty", float, "X", "divide the logits of tokens seen by X (default 1)"),
    (
        "--presence-penalty",
        "presence_penalty",
        float,
        "X",
        "take X from the logits of tokens seen (default 0)",
    ),
    ("--frequency-penalty", "frequency_penalty", float, "X", "the same, for each time seen (default 0)"),
    (
        "--repeat-last-n",
        "penalty_last_n",
        int,
        "N",
        "tokens the penalties look back at (default 64; -1: all)",
    ),
    ("--seed", "seed", int, "N", "the same seed gives the same text (default -1: a fresh one)"),
)


_MOST_POSITIONS = 16  # that a line shows; a draft that was looked up has up to 64


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "generate",
        help="continue a text",
        description="Continue a text: what the target alone would write, sooner. The text streams to "
        "stdout, one line of statistics goes to stderr. Without -m, the small demo pair inside the package "
        "writes Python. Without --temp decoding is greedy: always the likeliest token.",
    )
    given = parser.add_argument_group("prompt (one of these, or stdin)")
    given.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue")
    given.add_argument("-p", "--prompt", dest="prompt_option", metavar="PROMPT", help="the same")
    given.add_argument(
        "-f", "--file", metavar="FILE", help="a file with it, - for stdin; a newline at its end is dropped"
    )

    add_models(parser)

    sampling = parser.add_argument_group(
        "sampling (the target's distribution, exactly; names as in llama.cpp)"
    )
    for flag, name, kind, metavar, text in _SAMPLING:
        sampling.add_argument(flag, dest=name, type=kind, metavar=metavar, help=text)
    sampling.add_argument(
        "--logit-bias",
        action="append",
        type=_bias,
        metavar="ID+N|ID-N",
        help="add to a token's logit, as 15043+1 or 15043-1; 15043-inf forbids it; may be repeated",
    )
    sampling.add_argument("--grammar", metavar="GBNF", help="a grammar that the text must follow")
    sampling.add_argument("--grammar-file", metavar="FILE", help="the same, from a file")
    sampling.add_argument(
        "-j", "--json-schema", metavar="SCHEMA", help="the text is a JSON document of this schema; {} is any"
    )
    sampling.add_argument("-jf", "--json-schema-file", metavar="FILE", help="the same, from a file")

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
        help="tokens the head drafts a round, anchor not counted (default auto: each round the number that "
        "is expected to be fastest, none where drafting doesn't pay; 0: the head doesn't draft)",
    )
    output.add_argument(
        "--lookup",
        choices=LOOKUPS,
        default="auto",
        help="drafts from the text itself, of what followed its last tokens where they stood before (default "
        "auto: where that is expected to be faster, and never with a number in --max-draft-tokens; map-k4v, "
        "mod: wherever that one finds something, else the head)",
    )
    output.add_argument(
        "--min-draft-probability",
        type=float,
        metavar="P",
        help="end a draft before its probability falls below P (default 0: never)",
    )
    output.add_argument(
        "--exact",
        action="store_true",
        help="byte for byte what plain decoding gives: draft only where logits stay the same (checked once)",
    )
    output.add_argument("--no-speculate", action="store_true", help="decode without drafts: the target alone")
    output.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="log-probabilities of each token and the N likeliest, with --json",
    )
    output.add_argument("--stats", action="store_true", help="all statistics on stderr")
    output.add_argument("--json", action="store_true", help="text, tokens and statistics as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    prompt = _prompt(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal can't show
    with load(args) as engine:
        stream = engine.stream(
            prompt,
            **_settings(args),
        )
        result = _print_or_collect(stream, args.json, lambda: say_where(engine))
    if args.json:
        record = {
            "text": result.text,
            "tokens": result.tokens,
            "finish_reason": result.finish_reason,
            "seed": result.seed,
            "stats": result.stats.as_dict(),
        }
        if result.logprobs is not None:
            record["logprobs"] = [entry._asdict() for entry in result.logprobs]
        print(json.dumps(record, ensure_ascii=False), flush=True)
    print(_summary(result.stats), file=sys.stderr)
    if args.stats:
        print(_table(result), file=sys.stderr)
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    """What was given, by the names `Engine.generate` knows; the rest is left to its defaults."""
    settings: dict[str, Any] = {
        "max_tokens": None if args.predict == -1 else args.predict,
        "max_draft_tokens": args.max_draft_tokens,
        "lookup": args.lookup,
        "stop": args.stop,
        "speculate": not args.no_speculate,
        "logit_bias": dict(args.logit_bias) if args.logit_bias else None,
        "grammar": _given(args.grammar, args.grammar_file, "--grammar"),
        "json_schema": _given(args.json_schema, args.json_schema_file, "--json-schema"),
        "seed": None if args.seed == -1 else args.seed,
        "logprobs": args.logprobs,
    }
    names = ["min_draft_probability", *(name for _, name, *_ in _SAMPLING if name != "seed")]
    settings |= {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return cast(Settings, settings)


def _given(text: str | None, file: str | None, flag: str) -> str | None:
    if text is not None and file is not None:
        raise ValueError(f"both {flag} and {flag}-file are given: leave one out")
    return text if file is None else _text(file)


def _print_or_collect(
    stream: Generator[Piece, None, Result], quiet: bool, begin: Callable[[], None]
) -> Result:
    """The stream's result, its text written to stdout as it comes unless `quiet`, after a call of `begin`."""
    ended = True  # the text, with a newline
    begun = False
    try:
        while True:
            piece = next(stream)
            if not begun:
                begin()
                begun = True
            if not quiet:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
                ended = piece.text.endswith("\n") if piece.text else ended
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:  # after Ctrl-C too, so that the shell's prompt gets its own line
        if not ended and sys.stdout.isatty():
            print(flush=True)


def _prompt(args: argparse.Namespace) -> str:
    given = [value for value in (args.prompt, args.prompt_option, args.file) if value is not None]
    if len(given) > 1:
        raise ValueError("more than one prompt: give PROMPT, -p or -f, one of them")
    if args.file is None and given:
        return str(given[0])
    if args.file is None and sys.stdin.isatty():
        raise ValueError("no prompt: give it as an argument, with -f FILE, or on stdin")
    return _text("-" if args.file is None else args.file).removesuffix("\n")


def _text(file: str) -> str:
    """A file's text, or that of stdin for -."""
    source = "stdin" if file == "-" else file
    data = sys.stdin.buffer.read() if source == "stdin" else Path(source).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} isn't UTF-8 text (byte {error.start}): convert it first") from None


def _summary(stats: Stats) -> str:
    tokens = _counted(stats.generated_tokens, "token")
    speed = f"{stats.tokens_per_second:.1f} tok/s"
    if not stats.drafting.startswith("on"):
        return f"{tokens}, plain decoding ({stats.drafting.removeprefix('off: ')}), {speed}"
    rounds = _counted(stats.rounds, "round")
    if stats.by_drafter:
        drafters = "; ".join(f"{name}: {_drafter(own)}" for name, own in stats.by_drafter.items())
        rounds += f" ({drafters}), mean acceptance length {stats.mean_acceptance_length:.2f}"
    return f"{tokens}, {rounds}, {_counted(stats.plain_steps, 'plain step')}, {speed}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _drafter(stats: DrafterStats) -> str:
    return f"{stats.rounds}, {stats.accepted} of {stats.drafted} accepted"


def _table(result: Result) -> str:
    stats = result.stats
    shares = stats.acceptance_by_position
    positions = " ".join(f"{share:.2f}" for share in shares[:_MOST_POSITIONS])
    if len(shares) > _MOST_POSITIONS:
        positions += f" ... ({len(shares)} positions; --json has them all)"
    rows = {
        "drafting": stats.drafting,
        "width": f"{stats.max_draft_tokens} tokens of the head a round at most; {_widths(stats)}",
        "plain steps": stats.plain_steps,
        **{name: f"rounds: {_drafter(own)}" for name, own in stats.by_drafter.items()},
        "seed": result.seed,
        "prompt": f"{stats.prompt_tokens} tokens, {stats.reused_tokens} of them reused",
        "accepted": f"{stats.accepted} of {stats.drafted} drafted tokens, {stats.draft_acceptance_rate:.1%}",
        "by position": positions or "-",
        "same logits": _difference(stats.logit_difference),
        "prefill": f"{stats.prefill_seconds:.3f} s",
        "draft": f"{stats.draft_seconds:.3f} s",
        "verify": f"{stats.verify_seconds:.3f} s",
    }
    return "\n".join(f"  {name:12} {value}" for name, value in rows.items())


def _widths(stats: Stats) -> str:
    used = [f"{count} of {width}" for width, count in enumerate(stats.rounds_by_width) if count]
    return "rounds: " + ", ".join(used) if used else "no rounds"


def _bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+)([+-](?:inf|[\d.]+))", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no token id with a signed number, such as 15043-1.5")
    return int(match[1]), float(match[2])


def _difference(difference: float | None) -> str:
    if difference is None:
        return "plain decoding"
    return (
        "bit-identical to plain decoding's"
        if difference == 0.0
        else f"within {difference:.2g} of plain decoding's"
    )


def _width(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None

"""`pydflash2 bench`: how fast a pair is on this machine, and what drafting brings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tqdm import tqdm

import pydflash2
from pydflash2 import arguments
from pydflash2.cli.models import add_models, load, say_where

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pydflash2.bench.measuring import Options, Plan, Prefill
    from pydflash2.bench.records import Report
    from pydflash2.bench.workloads import Workload

_FULL = {"predict": 128, "repeats": 5}
_QUICK = {"predict": 48, "repeats": 2}
_QUICK_WORKLOADS = "code,editing,prose"
_LONGEST_PREFILL = 4096


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "bench",
        help="measure what drafting brings on this machine",
        description="Measure a pair on this machine: several workloads, each decoded plainly and with every "
        "way to draft, in turn. A table of medians goes to stdout. Greedy texts are cut where they begin to "
        "loop, since anything can draft a loop; what is inflated all the same is marked. See "
        "docs/benchmarks.md for what each figure means. Without -m the small demo pair is measured.",
    )
    add_models(parser)
    parser.add_argument("--no-head", action="store_true", help="leave the head out: what lookup does alone")
    parser.add_argument(
        "--exact", action="store_true", help="as generate --exact: only widths that change no bit"
    )

    what = parser.add_argument_group("what is measured")
    what.add_argument("--quick", action="store_true", help="fewer arms and texts: the demo pair in a minute")
    what.add_argument(
        "--workloads",
        metavar="NAME,...",
        help="of code, editing, prose, qa, synthetic (default: all; with --prompts: none)",
    )
    what.add_argument(
        "--prompts",
        action="append",
        metavar="FILE",
        default=[],
        help="prompts of your own, one workload a FILE: a text, a .jsonl with one prompt a line under "
        '"prompt" (a list of texts is a conversation), or a folder of such files; may be repeated',
    )
    what.add_argument(
        "--arms",
        metavar="NAME,...",
        help="groups of plain, head, lookup, stack, auto, or single arms such as head-3 (default: all)",
    )
    what.add_argument(
        "--repeats", type=int, metavar="N", help="times each text is written by each arm (default 5)"
    )
    what.add_argument("-n", "--predict", type=int, metavar="N", help="tokens of a text at most (default 128)")
    what.add_argument("--temp", type=float, default=0.0, metavar="T", help="temperature (default 0: greedy)")
    what.add_argument("--seed", type=int, default=1, metavar="N", help="for --temp (default 1)")
    what.add_argument(
        "--keep-loops", action="store_true", help="don't cut texts that loop; their rows are marked"
    )
    what.add_argument(
        "--prefill",
        type=int,
        metavar="N",
        help=f"tokens of a long prompt to time (default: what fits, {_LONGEST_PREFILL} at most; 0: none)",
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", metavar="FILE", help="all figures and single runs as JSON; -: stdout, no table"
    )
    output.add_argument("--csv", metavar="FILE", help="the table's rows as CSV")
    output.add_argument(
        "--report", metavar="FILE", help="one HTML file with plots (pip install 'pydflash2[bench]')"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    options = _options(args)
    chosen = _workloads(args)
    files = {name: value for name in ("json", "csv", "report") if (value := getattr(args, name)) is not None}
    _check_files(files)
    if args.no_head:
        args.head = None
    with load(args) as engine:
        say_where(engine)
        report = _measure(engine, args, chosen, options)
    _write(report, files)
    return 0


def _options(args: argparse.Namespace) -> Options:
    from pydflash2.bench.measuring import Options

    defaults = _QUICK if args.quick else _FULL
    predict, repeats = (
        getattr(args, name) if getattr(args, name) is not None else default
        for name, default in defaults.items()
    )
    if args.prefill is not None:
        arguments.integer("--prefill", args.prefill, 0)
    return Options(
        arguments.integer("-n", predict, 2),
        arguments.number("--temp", args.temp, 0),
        arguments.integer("--seed", args.seed, 0),
        arguments.integer("--repeats", repeats, 1),
        args.keep_loops,
    )


def _workloads(args: argparse.Namespace) -> list[Workload]:
    from pydflash2.bench import workloads

    names = args.workloads
    if names is None and not args.prompts:
        names = _QUICK_WORKLOADS if args.quick else ",".join(workloads.NAMES)
    found = workloads.packaged(_names("--workloads", names)) if names is not None else []
    found += [workloads.own(path) for path in args.prompts]
    double = {w.name for w in found if sum(w.name == other.name for other in found) > 1}
    if double:
        raise ValueError(f"two workloads are called {', '.join(sorted(double))}: rename one of the files")
    return found


def _names(flag: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"{flag} is empty: name one at least")
    return names


def _check_files(files: dict[str, str]) -> None:
    """Before anything is measured: a figure that can't be written is a quarter of an hour lost."""
    for name, file in files.items():
        if file == "-" and name == "json":
            continue
        if not Path(file).parent.is_dir():
            raise ValueError(f"--{name} {file}: there is no folder {Path(file).parent}")
        if Path(file).is_dir():
            raise ValueError(f"--{name} {file} is a folder: name a file")
    if "report" in files:
        from pydflash2.bench.report import check_libraries

        check_libraries()


def _measure(
    engine: pydflash2.Engine, args: argparse.Namespace, chosen: list[Workload], options: Options
) -> Report:
    from pydflash2.bench import arms, measuring
    from pydflash2.bench.environment import Environment, memory
    from pydflash2.bench.records import Report
    from pydflash2.bench.statistics import summarise

    environment = Environment.of(engine)
    possible = arms.possible(engine)
    compared = arms.few(possible) if args.quick else possible
    if args.arms is not None:
        compared = arms.chosen(possible, _names("--arms", args.arms))
    with _progress(len(chosen), "conversations written plainly") as step:
        plans = []
        for workload in chosen:
            step(workload.name)
            plans.append(measuring.plan(engine, workload, options))
    with _progress(measuring.n_steps(plans, compared, options), "measured") as step:
        runs = measuring.measure(engine, plans, compared, options, step)
    prefill = _prefill(engine, args, plans, options)
    return Report(
        environment, options, args.exact, memory(engine), prefill, summarise(plans, compared, runs), runs
    )


def _prefill(
    engine: pydflash2.Engine, args: argparse.Namespace, plans: list[Plan], options: Options
) -> Prefill | None:
    from pydflash2.bench import arms, measuring

    room = engine.context_size - 1
    length = min(room, _LONGEST_PREFILL) if args.prefill is None else args.prefill
    if length > room:
        raise ValueError(f"--prefill is {length}, but the context has room for {room} tokens and one more")
    if length == 0:
        return None
    # Width 1 reads the target's features as every width does.
    compared = [arm for arm in arms.possible(engine) if arm.name in (arms.PLAIN.name, "head-1")]
    text = "\n\n".join(text.prompt for plan in plans for text in plan.texts)
    with _progress(len(compared) * (options.repeats + 1), "prefill") as step:
        return measuring.prefill(engine, text, length, compared, options.repeats, step)


@contextmanager
def _progress(total: int, what: str) -> Iterator[Callable[[str], None]]:
    with tqdm(total=total, desc=what, unit="", file=sys.stderr, disable=None) as bar:

        def step(now: str) -> None:
            bar.set_postfix_str(now, refresh=False)
            bar.update()

        yield step


def _write(report: Report, files: dict[str, str]) -> None:
    from pydflash2.bench.records import write_csv, write_json
    from pydflash2.bench.table import table

    if files.get("json") == "-":
        write_json(report, sys.stdout)
    else:
        print(table(report), flush=True)
    writers: dict[str, Callable[[Report, TextIO], None]] = {"json": write_json, "csv": write_csv}
    if "report" in files:
        from pydflash2.bench.report import write_html

        writers["report"] = write_html
    for name, write in writers.items():
        if (path := files.get(name, "-")) != "-":
            with open(path, "w", encoding="utf-8", newline="") as file:
                write(report, file)
            print(f"pydflash2: wrote {path}", file=sys.stderr)

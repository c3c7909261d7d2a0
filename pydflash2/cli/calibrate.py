"""`pydflash2 calibrate`: what drafting and verifying cost here, measured and kept."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

from pydflash2.calibration import Costs
from pydflash2.cli import models

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "calibrate",
        help="measure what drafting and verifying cost here",
        description="Measure what a draft and a verification of each width take on this machine, and keep "
        "it for this pair: an engine that is loaded later then drafts at the fastest widths from its first "
        "round on. Without it, it learns them in its first rounds.",
    )
    models.add_models(parser)
    parser.add_argument(
        "--runs", type=int, default=7, metavar="N", help="times each width is measured (default 7)"
    )
    parser.add_argument("--exact", action="store_true", help="for engines that are loaded with exact=True")
    parser.add_argument("--json", action="store_true", help="seconds by width as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    with (
        models.load(args) as engine,
        tqdm(desc="steps", unit="", leave=False, disable=not sys.stderr.isatty()) as bar,
    ):

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        models.say_where(engine)
        costs = engine.calibrate(args.runs, progress)
    if args.json:
        print(json.dumps({"verify": costs.verify, "draft": costs.draft, "break_even": costs.break_even}))
    else:
        _print(costs)
    return 0


def _print(costs: Costs) -> None:
    """What a round of each width takes, and what it must commit to be as fast as plain decoding."""
    print(f"{'drafted':>7}  {'draft ms':>8}  {'verify ms':>9}  {'x plain':>7}  break-even tokens a round")
    for width, seconds in costs.verify.items():
        draft, even = costs.draft.get(width), costs.break_even.get(width)
        print(
            f"{width:7}  {'-' if draft is None else f'{1e3 * draft:.2f}':>8}  {1e3 * seconds:9.2f}  "
            f"{seconds / costs.verify[0]:7.2f}  {'-' if even is None else f'{even:.2f}'}"
        )

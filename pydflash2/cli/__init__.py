"""The command line: results on stdout, all else on stderr. Exit status 0: done, 1: failed, 2: bad usage."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence

import pydflash2
from pydflash2.cli import bench, calibrate, convert, doctor, generate, inspect, train

_INTERRUPTED = 130  # what shells report for a command that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    args = _parser().parse_args(arguments)
    if args.verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s")
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: _say("warning", message)
        try:
            status: int = args.run(args)
            sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:  # the reader has gone; nothing may be written at exit either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (pydflash2.PyDFlash2Error, ValueError, OSError) as error:
            if "PYDFLASH2_DEBUG" in os.environ:
                raise
            _say("error", error)
            return 2 if isinstance(error, ValueError) else 1


def _say(kind: str, message: object) -> None:
    print(f"pydflash2: {kind}: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pydflash2",
        description="DFlash 2 speculative decoding on GGUF models.",
        epilog="Set PYDFLASH2_DEBUG=1 to see where an error comes from.",
    )
    parser.add_argument("--version", action="version", version=f"pydflash2 {pydflash2.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (generate, convert, inspect, doctor, calibrate, bench, train):
        subparser = command.add_parser(commands)
        subparser.add_argument("-v", "--verbose", action="store_true", help="show llama.cpp's log on stderr")
        subparser.set_defaults(run=command.run)
    return parser

"""Makes the golden files with the reference: `cd tests && python -m golden.make_golden`.

Needs torch (CPU), transformers and `pip install --no-deps dflash==0.1.0`. Prompts are tried until no choice
in the run, of a candidate, of a path or of the target, is closer than MARGIN: another machine's rounding
then changes nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from golden.cases import CASES, FOLDER, PROMPT_LENGTH, Case
from tiny.heads import HEADS
from tiny.numbers import token_ids
from tiny.reference import Reference, Run

MARGIN = 4e-4
LATTICE_BYTES = 12_000  # a case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases to make (default: all)")
    for name in parser.parse_args().names or CASES:
        prompt_seed, run = _robust_run(CASES[name])
        _write(name, CASES[name], prompt_seed, run)
        committed = [turn.n_committed for turn in run.rounds]
        print(f"{name}: prompt seed {prompt_seed}, margin {run.margin:.1e}, committed a round {committed}")


def _robust_run(case: Case) -> tuple[int, Run]:
    head = HEADS[case.head]
    ends = case.head == "chain-ending"
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference.tiny(head, Path(folder))
        for seed in range(200):
            prompt = token_ids(seed, PROMPT_LENGTH, 0, head.of.vocabulary.eos)
            run = reference.run(prompt, case.n_tokens, case.width)
            last = run.rounds[-1]
            cut_inside = last.n_committed <= last.n_accepted and len(run.committed) < case.n_tokens
            wanted = cut_inside and last.n_committed > 1 if ends else len(run.committed) == case.n_tokens
            if run.margin >= MARGIN and wanted:
                return seed, run
    raise SystemExit(f"{case.head}: no prompt seed below 200 keeps a margin of {MARGIN}")


def _write(name: str, case: Case, prompt_seed: int, run: Run) -> None:
    drafting = [index for index, turn in enumerate(run.rounds) if len(turn.drafted)]
    first = run.rounds[drafting[0]]
    size = first.unary.nbytes + (0 if first.scores is None else first.scores.nbytes)
    n_kept = max(1, min(4, LATTICE_BYTES // size, len(drafting)))
    kept = sorted({drafting[round(step)] for step in np.linspace(0, len(drafting) - 1, n_kept)})
    arrays = {}
    for index in kept:
        turn = run.rounds[index]
        arrays[f"candidates_{index}"] = turn.candidates.astype(np.uint16)
        arrays[f"unary_{index}"] = turn.unary
        if turn.scores is not None:
            arrays[f"scores_{index}"] = turn.scores
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    rows = [[t.position, t.anchor, t.drafted.tolist(), t.n_accepted, t.n_committed] for t in run.rounds]
    stored = {
        "made_with": {package: version(package) for package in ("dflash", "torch", "transformers", "numpy")},
        "head": case.head,
        "prompt_seed": prompt_seed,
        "prompt": run.prompt,
        "committed": run.committed,
        "lattice_rounds": kept,
        "rounds": rows,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in stored.items() if key != "rounds"]
    lines.append('"rounds": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n]")
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

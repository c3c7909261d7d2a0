"""The figures as data: what JSON and CSV files hold."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from pydflash2.bench.environment import Environment
from pydflash2.bench.measuring import Options, Prefill, Run
from pydflash2.bench.statistics import Row, Workload

FORMAT = 1  # of the JSON; grows when a reader would have to change


@dataclass(frozen=True)
class Report:
    """All that one `pydflash2 bench` found."""

    environment: Environment
    options: Options
    exact: bool
    memory: dict[str, int | None]
    prefill: Prefill | None
    workloads: list[Workload]
    runs: Sequence[Run]

    def rows(self) -> list[Row]:
        return [row for workload in self.workloads for row in workload.rows]


def write_json(report: Report, file: TextIO) -> None:
    json.dump(_record(report), file, ensure_ascii=False, indent=1)
    file.write("\n")


def _record(report: Report) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "environment": asdict(report.environment),
        "settings": asdict(report.options) | {"exact": report.exact},
        "memory_bytes": report.memory,
        "prefill": None if report.prefill is None else asdict(report.prefill),
        "workloads": [
            {
                "name": workload.plan.workload.name,
                "description": workload.plan.workload.description,
                "inflated": workload.plan.workload.inflated,
                "turns_left_out": workload.plan.left_out,
                "best": best.arm if (best := workload.best()) else None,
                "auto_to_best": workload.auto_to_best(),
                "rows": [asdict(row) for row in workload.rows],
            }
            for workload in report.workloads
        ],
        "runs": [asdict(run) | {"stats": run.stats.as_dict()} for run in report.runs],
    }


_COLUMNS = (
    "workload",
    "arm",
    "group",
    "width",
    "inflated",
    "n_texts",
    "n_cut",
    "n_looped",
    "n_runs",
    "generated_tokens",
    "tokens_per_second",
    "tokens_per_second_low",
    "tokens_per_second_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "mean_acceptance_length",
    "acceptance_by_position",
    "rounds_by_width",
    "drafted_by",
    "draft_ms",
    "verify_ms",
    "rest",
    "prefill_tokens_per_second",
)


def write_csv(report: Report, file: TextIO) -> None:
    """One line a row of the table. Lists are in one cell, apart by spaces, maps as key:value."""
    writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in report.rows():
        record: dict[str, Any] = {}
        for name, value in asdict(row).items():
            if name in ("tokens_per_second", "ratio"):
                record |= {name: value["median"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
            elif isinstance(value, list):
                record[name] = " ".join(f"{share:.4f}" for share in value)
            elif isinstance(value, dict):
                record[name] = " ".join(f"{key}:{count}" for key, count in value.items())
            else:
                record[name] = value
        writer.writerow(record)

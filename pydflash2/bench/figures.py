"""How a figure is written, in the terminal and in the report alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydflash2.bench.environment import Environment
from pydflash2.bench.measuring import Options
from pydflash2.bench.statistics import Row, Spread, Workload

_MOST_POSITIONS = 8  # lookup drafts are longer; nobody reads 64 shares
_MOST_WIDTHS = 4

MEMORY = {
    "target_weights": "target's weights",
    "head_weights": "head's weights",
    "head_cache": "head's K/V cache",
    "head_compute": "head's scratch",
    "process_peak": "process, at its peak",
}


def spread(value: Spread, digits: int) -> str:
    return f"{value.median:.{digits}f} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def milliseconds(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def positions(shares: Sequence[float]) -> str:
    text = " ".join(f"{share:.2f}" for share in shares[:_MOST_POSITIONS])
    return (text + (" ..." if len(shares) > _MOST_POSITIONS else "")) or "-"


def widths(rounds: Mapping[int, int]) -> str:
    """The widths most rounds had, and their shares."""
    total = sum(rounds.values())
    most = sorted(rounds.items(), key=lambda item: -item[1])[:_MOST_WIDTHS]
    text = ", ".join(f"{width}: {count / total:.0%}" for width, count in most)
    return (text + (", ..." if len(rounds) > _MOST_WIDTHS else "")) or "-"


def drafters(rounds: Mapping[str, int]) -> str:
    total = sum(rounds.values())
    return ", ".join(f"{name} {count / total:.0%}" for name, count in rounds.items() if count)


def marks(row: Row) -> str:
    """What a reader must know before comparing this row."""
    found = ["inflated"] if row.inflated else []
    if row.n_looped:
        found.append(f"{row.n_looped} of {row.n_runs} looped")
    return ", ".join(found)


def texts(workload: Workload) -> str:
    plan = workload.plan
    parts = [_count(len(plan.texts), "text")]
    if cut := sum(text.cut for text in plan.texts):
        parts.append(f"{cut} of them cut where they began to loop")
    if forced := sum(bool(text.forbidden) for text in plan.texts):
        parts.append(f"{forced} kept from ending")
    if plan.left_out:
        parts.append(f"{_count(plan.left_out, 'turn')} left out: the context has no room")
    return ", ".join(parts)


def settings(options: Options, exact: bool) -> str:
    parts = ["greedy" if options.temperature == 0 else f"temperature {options.temperature:g}"]
    parts.append(f"{options.max_tokens} tokens a text at most")
    parts.append(_count(options.repeats, "repeat"))
    parts += ["exact"] * exact + ["loops kept"] * options.keep_loops
    return ", ".join(parts)


def machine(environment: Environment) -> str:
    return (
        f"{environment.cpu}, {_count(environment.cores, 'core')}, "
        f"{_count(environment.threads, 'thread')}; target on {environment.devices}"
    )


def size(n_bytes: int | None) -> str:
    if n_bytes is None:
        return "-"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n_bytes >= 1024**power:
            return f"{n_bytes / 1024**power:.{power - 1}f} {unit}"
    return f"{n_bytes} B"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"

"""`jitter collectives`: bandwidth, waiting and hidden share of a job's communication, as text, csv or JSON."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jitter.cli.options import (
    force_option,
    format_option,
    json_option,
    lake_argument,
    steps_option,
    table_output_option,
)
from jitter.core.errors import UsageError
from jitter.core.formatting import escape_control, format_bandwidth, format_columns, format_digits, format_json
from jitter.core.step_key import StepKey
from jitter.report.text.tables import UNKNOWN_CELL, Column, build_table, measure

if TYPE_CHECKING:
    from jitter.analysis.metrics.bandwidth_baseline import Baseline
    from jitter.analysis.metrics.communication import CollectiveRow, Communication
    from jitter.api import Lake

COLLECTIVES_SCHEMA_VERSION: Final = 1
_DECIMALS: Final = 3
_LONGEST_HEADING: Final = 2048
"""Characters of a line of heads: a file without line breaks is not read whole."""


@click.command
@lake_argument
@steps_option
@click.option("--group", metavar="NAME", help="Only collectives of this process group (or ranks: 0,1,2,3).")
@click.option(
    "--by",
    type=click.Choice(["size", "group", "rank", "step"]),
    default="size",
    show_default=True,
    help="A row per operation and size (and group), per rank or per step.",
)
@click.option(
    "--baseline", metavar="FILE|LABEL", help="Bandwidths to compare with: an nccl-tests log, or a label of the lake."
)
@json_option
@format_option("text", "csv", default="text, or -o's suffix")
@table_output_option
@force_option
def collectives(
    lake: Path,
    steps: list[int] | None,
    group: str | None,
    by: str,
    baseline: str | None,
    as_json: bool,
    form: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Show what the network did: calls, sizes, bandwidth, waiting, and how much of it compute hid.

    Bandwidths are those of nccl-tests, in GB/s (1e9 bytes); a call's time is from its last rank's arrival to its end.
    In the second table a collective counts once for its group, and a copy for its rank.

    \b
    Examples:
        jitter collectives
        jitter collectives --by rank
        jitter collectives --baseline nccl-tests.log
        jitter collectives run17-lake --steps 2005-2049 --json
        jitter collectives --by group --format csv -o collectives.csv
    """
    from jitter.analysis.metrics.communication import tabulate
    from jitter.cli.lakes import open_lake
    from jitter.cli.output.table import choose_format, write_table
    from jitter.core.files import check_overwrite, write_text
    from jitter.report.forms import SIGNATURES

    if as_json and form is not None:
        raise UsageError("--json and --format are two forms", "give one of them")
    chosen = "json" if as_json else choose_format(form, output) or "text"
    if chosen == "parquet":
        raise UsageError(f"{output}: collectives are not written as parquet", "name it .csv or .json")
    if output is not None and chosen != "csv":
        check_overwrite(output, force or (chosen == "text" and is_report(output)), *SIGNATURES.get(chosen, ()))
    opened = open_lake(lake)
    measured = opened.measure_collectives(opened.steps_numbered(steps), group)
    document = _measure(
        measured, opened.hosts, None if baseline is None else _baseline(opened, baseline), by_group=by == "group"
    )
    if group is not None and not document["collectives"]:
        raise UsageError(f"{lake}: no collectives of group {group!r}", "the groups: jitter collectives --by group")
    if chosen == "csv":
        write_table(tabulate(measured, opened.hosts, by), "csv", output, force)
        return
    text = format_json(_plain(document)) if chosen == "json" else _format(document, by)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _baseline(lake: "Lake", named: str) -> "Baseline":
    """Read a baseline from a file, or take the lake's measurements of a label."""
    from jitter.analysis.metrics.bandwidth_baseline import Baseline

    path = Path(named)
    if path.is_file():
        from jitter.logs import parse

        tables = parse(path).tables
        baseline = Baseline(named, tables["bandwidth"].to_pylist() if "bandwidth" in tables else [])
        if not baseline:
            raise UsageError(f"{path}: holds no bandwidths", "give the output of nccl-tests or rccl-tests")
        return baseline
    measured = lake.log_table("bandwidth").to_pylist()
    labels = sorted({row["label"] for row in measured if row["label"] is not None})
    if named not in labels:
        hint = f"labels of the lake: {', '.join(labels)}" if labels else "give the output of nccl-tests or rccl-tests"
        raise UsageError(f"no file and no label {named!r}", hint)
    return Baseline(named, [row for row in measured if row["label"] == named])


def _measure(
    communication: "Communication", hosts: Mapping[int, str | None], baseline: "Baseline | None", *, by_group: bool
) -> dict[str, Any]:
    """Return the tables of rows as the JSON document has them, with findings, and reasons why values are unknown."""
    from jitter.analysis.metrics.bandwidth_baseline import compare_with_baseline
    from jitter.analysis.metrics.communication import (
        tabulate_collectives,
        tabulate_ranks,
        tabulate_sizes,
        tabulate_steps,
    )
    from jitter.analysis.thresholds import THRESHOLDS

    rows = tabulate_collectives(communication, by_group=by_group)
    compared, missing = ([], []) if baseline is None else compare_with_baseline(rows, baseline)
    reasons = [text.format(count) for text, count in sorted(communication.reasons.items())]
    if unsized := sum(row.calls for row in rows if row.size is None):
        reasons.append(f"{unsized} collectives have no size: the source does not state it")
    return {
        "schema_version": COLLECTIVES_SCHEMA_VERSION,
        "collectives": rows,
        "ranks": tabulate_ranks(communication, hosts),
        "steps": tabulate_steps(communication),
        "sizes": tabulate_sizes(communication),
        "baseline": None if baseline is None else {"label": baseline.label, "rows": compared},
        "findings": [
            f"{row.collective} of {row.size_bytes:,} B reaches {format_bandwidth(row.busbw, of=row.baseline_busbw)}"
            for row in compared
            if row.ratio is not None and row.ratio < THRESHOLDS.efficiency.below_baseline
        ],
        "reasons": reasons + missing,
    }


def _plain(value: Any) -> Any:
    """Return what JSON has of a document; numbers to three decimals."""
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    if hasattr(value, "_asdict"):  # a row
        return _plain(value._asdict())
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _format(document: Mapping[str, Any], by: str) -> str:
    """Return the tables for a terminal or a pipe; `-` stands for the unknown."""
    first, columns = _FIRST_TABLE[by]
    tables = [(columns, document[first])]
    if first == "collectives":
        tables.append((_SIZES, document["sizes"]))
    if document["baseline"]:
        tables.append((_COMPARED, document["baseline"]["rows"]))
    parts = []
    for number, (columns, rows) in enumerate(tables):
        if rows or not number:
            table = build_table("", columns, rows)
            parts.append(format_columns([table.heads, *table.rows]))
    if notes := [*document["findings"], *document["reasons"]]:
        parts.append("".join(f"{note}\n" for note in notes))
    return "\n".join(parts)


def is_report(path: Path) -> bool:
    """Whether a file begins with the heads of a report's first table; a pipe is not read."""
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            heads = re.split("  +", file.readline(_LONGEST_HEADING).strip())
    except OSError:
        return False
    return any(heads == [column.head for column in columns] for _, columns in _FIRST_TABLE.values())


def _number(form: str = ",") -> Callable[[float | None], str]:
    return measure(f"{{:{form}}}".format, unknown=UNKNOWN_CELL)


def _text(text: str | None) -> str:
    return escape_control(text or UNKNOWN_CELL)


def _name_operation(row: "CollectiveRow") -> str:
    imbalance = "" if row.imbalance is None else f" (largest/mean part {row.imbalance:.2f})"
    return (row.collective or "unknown") + imbalance


_rate: Final = measure(format_digits, unknown=UNKNOWN_CELL)
"""In GB/s."""
_COLLECTIVES: Final = (
    Column("collective", _name_operation),
    Column("group", "group", _text),
    Column("calls", "calls", _number()),
    Column("size", "size", _number()),
    Column("dtype", "dtype", _text),
    Column("group size", "group_size", _number()),
    Column("hosts", "hosts", lambda hosts: {"one": "1", "many": "> 1"}.get(hosts, UNKNOWN_CELL)),
    Column("time µs", "time_us", _number(",.1f")),
    Column("algbw", "algbw", _rate),
    Column("busbw", "busbw", _rate),
    Column("wait µs", "wait_us", _number(",.1f")),
    Column("last rank", "last_rank", _number()),
    Column("last share", "last_share", _number(".0%")),
    Column("hidden", "hidden_share", _number(".0%")),
    Column("lost ms", "lost_ms", _number(",.3f")),
)
_SIZES: Final = (
    Column("sizes, all ranks", "operation"),
    Column("from bytes", "at_least_bytes", _number()),
    Column("below", lambda row: 2 * row.at_least_bytes or 1, _number()),
    Column("calls/step", "calls_per_step", lambda calls: f"{calls:,.1f}".removesuffix(".0")),
    Column("bytes/step", "bytes_per_step", _number(",.0f")),
)
_COMPARED: Final = (
    Column("baseline", "collective"),
    Column("size", "size_bytes", _number()),
    Column("busbw", "busbw", _rate),
    Column("baseline GB/s", "baseline_busbw", _rate),
    Column("ratio", "ratio", _number(".2f")),
)
_PARTS: Final = tuple(
    Column(f"{part} ms" if part == "step" else part, f"{part}_ms", _number(".3f"))
    for part in ("step", "compute", "hidden", "exposed", "waiting", "copies", "idle")
)
_FIRST_TABLE: Final[Mapping[str, tuple[str, Sequence[Column]]]] = {
    "size": ("collectives", [column for column in _COLLECTIVES if column.head != "group"]),
    "group": ("collectives", _COLLECTIVES),
    "rank": ("ranks", (Column("rank", "rank"), Column("host", "host", _text), Column("steps", "samples"), *_PARTS)),
    "step": (
        "steps",
        (
            Column("step", lambda row: StepKey(row.epoch, row.step).label),
            Column("ranks", "samples"),
            *_PARTS,
        ),
    ),
}
"""By `--by`: what of the document it has, and its columns."""

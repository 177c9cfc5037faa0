"""The guide says what the code does: every table of names equals the code's, both ways; what it recommends works."""

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

import jitter
from jitter import guide
from jitter.analysis.detection.standouts import Recurs
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.efficiency import EfficiencyKind
from jitter.analysis.diagnosis.hang.model import Call, Hang, HangKind, LastCall, StuckOperation, Variant
from jitter.analysis.diagnosis.loss.waterfall import RUNG_OF_CHANGE
from jitter.analysis.diagnosis.model import RUNGS, Cause, CauseCertainty, Confidence, Fact, FactKind, Scope
from jitter.analysis.metrics.step_metrics import METRICS
from jitter.analysis.thresholds import THRESHOLDS
from jitter.cli import cli
from jitter.core.errors import ExitCode, UsageError
from jitter.core.names.kernels import OPERATIONS
from jitter.core.schema import HOST, KERNELS
from jitter.ingestion.inspect import inspect
from jitter.ingestion.names import compile_step_pattern, host_range_kind
from jitter.ingestion.ranks.decide_ranks import rank_in_path
from jitter.ingestion.transform.steps.step_markers import parse_marker
from jitter.lake.records import SourceRecord, StepRecord
from jitter.query.columns import table_schema
from jitter.query.relations import lake_relations
from jitter.report.json_report import report_document
from jitter.report.page import how_to_read
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database


def tables(topic: str) -> list[list[list[str]]]:
    """The topic's tables, row by row without heading and rule, cell by cell without code marks."""
    found: list[list[list[str]]] = []
    lines = guide.text(topic).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|"):
            continue
        if not before.startswith("|"):
            found.append([])
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        found[-1].append([cell.strip().strip("`") for cell in cells])
    return [table[2:] for table in found]


def firsts(table: list[list[str]]) -> list[str]:
    return [row[0] for row in table]


def test_every_file_is_a_topic_and_packaged_beside_the_code():
    package = Path(guide.__file__).parent
    assert sorted(path.stem for path in package.glob("*.md")) == sorted(guide.TOPICS)
    assert [topic.name for topic in guide.topics()] == list(guide.TOPICS)


@pytest.mark.parametrize("name", guide.TOPICS)
def test_a_topic_begins_with_title_and_one_sentence(name: str):
    topic = next(topic for topic in guide.topics() if topic.name == name)
    assert guide.text(name).startswith(f"# {topic.title}\n\n")
    assert re.fullmatch(r"[A-Z][^\n]+[^.\n]\.", topic.summary)
    assert not re.search(r"\. [A-Z]", topic.summary)
    assert guide.body(name) in guide.text(name)
    assert topic.summary not in guide.body(name)


@pytest.mark.parametrize("name", guide.TOPICS)
def test_references_lead_to_topics(name: str):
    named = re.findall(r"[Tt]opics? ((?:`[\w-]+`(?:, | and )?)+)", guide.text(name))
    assert {word for words in named for word in re.findall(r"`([\w-]+)`", words)} <= set(guide.TOPICS)


def test_an_unknown_topic_is_refused_with_a_hint():
    hints = {}
    for word in ("metric", "cpu_launch", "xyzzy"):
        with pytest.raises(UsageError) as caught:
            guide.text(word)
        hints[word] = caught.value.hint or ""
    assert "did you mean metrics?" in hints["metric"]
    assert hints["cpu_launch"].endswith("jitter explain causes")
    assert all(topic in hints["xyzzy"] for topic in guide.TOPICS)


@pytest.mark.parametrize(("at", "schema"), [(0, KERNELS), (1, HOST)])
def test_columns_of_the_lake(at: int, schema: pa.Schema):
    told = [(name, kind, null) for name, kind, null, _ in tables("lake")[at]]
    assert told == [(field.name, _type(field.type), "yes" if field.nullable else "no") for field in schema]


def _type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return str(kind.value_type)
    return f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)


@pytest.mark.parametrize(("at", "record"), [(2, SourceRecord), (3, StepRecord)])
def test_fields_of_the_records(at: int, record: type[msgspec.Struct]):
    assert sorted(firsts(tables("lake")[at])) == sorted(field.name for field in msgspec.structs.fields(record))


def test_relations():
    assert firsts(tables("lake")[4]) == [relation.name for relation in lake_relations()]


def test_operations_of_collectives():
    row = next(row for row in tables("lake")[0] if row[0] == "collective")
    assert tuple(re.findall(r"`?(\w+)`?", row[3].partition(":")[2])) == OPERATIONS


def test_metrics():
    named = tables("metrics")[0]
    assert tuple(firsts(named)) == METRICS
    assert [row[1] for row in named] == [f"{metric}_ns" for metric in METRICS]
    deviations = set(re.findall(r"`(\w+_deviation_ns)`", guide.text("metrics")))
    assert deviations == {name for name in table_schema("metrics").names if name.endswith("_deviation_ns")}


def test_worked_numbers_add_up():
    rows = {(row[0], row[1]): [int(cell) for cell in row[2:6]] for row in tables("metrics")[-1]}
    for metric, deviations in ((key, row[6]) for row in tables("metrics")[-1] for key in [(row[0], row[1])]):
        *gpus, average = rows[metric]
        assert [value - average for value in gpus] == [int(one.replace("−", "-")) for one in deviations.split(", ")]
    for gpu in range(4):
        first = rows["0", "gap"][gpu] + rows["0", "duration"][gpu]
        assert rows["0", "ttke"][gpu] == first
        assert rows["1", "ttke"][gpu] == first + rows["1", "gap"][gpu] + rows["1", "duration"][gpu]


def test_causes_scopes_and_levels():
    causes, scopes = tables("causes")
    assert tuple(firsts(causes)) == get_args(Cause)
    words = [row[1].split("**")[1] for row in causes if "**" in row[1]]
    assert words == [CAUSES[cause].words for cause in get_args(Cause) if cause != "none"]
    assert tuple(firsts(scopes)) == get_args(Scope)
    thresholds, levels, certainty, recurs = tables("confidence")
    assert thresholds
    assert tuple(firsts(levels)) == get_args(Confidence)
    assert tuple(firsts(certainty)) == get_args(CauseCertainty)
    assert sorted(firsts(recurs)) == sorted(get_args(Recurs))


def test_each_cause_is_said_how_it_is_decided():
    part = guide.text("causes").split("## How a cause is decided", 1)[1].split("## Scopes", 1)[0]
    decided = {cause for line in re.findall(r"^- (\*\*.+?\*\*)", part, re.M) for cause in re.findall(r"`(\w+)`", line)}
    assert decided == set(get_args(Cause))


def test_thresholds():
    told = {name: float(value) for name, value, *_ in tables("confidence")[0]}
    assert told == {name: value for name, value in THRESHOLDS._asdict().items() if not isinstance(value, tuple)}


def test_losses_and_facts_of_all_ranks():
    causes, kinds, rungs = tables("efficiency")
    assert {cause: rung.strip("`") for cause, rung, _ in causes}.items() <= RUNG_OF_CHANGE.items()
    assert tuple(firsts(kinds)) == get_args(EfficiencyKind)
    assert tuple(firsts(rungs)) == RUNGS
    told = " ".join(guide.text("efficiency").split())
    assert f"at least **{THRESHOLDS.efficiency.min_share:.0%} of a step**" in told
    assert f"communication: {THRESHOLDS.efficiency.compute_bound:.0%})" in told
    assert f"less than {THRESHOLDS.efficiency.compute_bound:.0%} of the steps" in told
    assert f"below {THRESHOLDS.efficiency.small_kernel_ns / 1e3:.0f} µs" in told


def test_kinds_of_facts():
    assert set(firsts(tables("evidence")[0])) == set(get_args(FactKind))


def test_kinds_of_hangs():
    assert set(firsts(tables("hang")[1])) == set(get_args(HangKind))


def test_alignment_methods():
    assert set(firsts(tables("alignment")[0])) == {"collective", "wall clock", "none"}


def test_exit_codes_and_commands():
    codes, commands = tables("exit-codes")
    assert [(int(code), name) for code, name, _ in codes] == [(code.value, code.name) for code in ExitCode]
    assert firsts(commands) == [f"jitter {verb}" for verb in cli.list_commands(None)]  # type: ignore[arg-type]


CALL = Call("0", "default_pg", 19, "nccl:all_reduce", "all_reduce", 4096, 1024, "Float", "train.py(7): step")
STUCK = StuckOperation(CALL, False, (0, 1), (1,), (), (0,), (1,), (2,), (3,), (Variant(CALL, (0,)),), 7, 8, 9)
HANG = Hang(
    STUCK, "mismatch", (0,), False, None, (Hang(STUCK),), (LastCall(0, CALL, True),), "Hang", ("rank 1 waits",), "look"
)
FACT = Fact("gpu_error", "Xid 48", ("gpu_compute",), "likely", (1,), "node0", 1, "replace the GPU")
CONTAINERS = {
    *("run", "run.alignment", "loss", "waterfall", "split", "split[].ranks", "steps", "culprits", "culprits[].seen"),
    *("efficiency", "facts", "what_if", "conclusion", "conclusion.unrecorded"),
}
"""Keys that the table leaves to those in them."""


def test_keys_of_the_json_report(sample_lake: jitter.Lake):
    found: dict[str, set[str]] = {}
    overview, diagnosis = build_run_overview(sample_lake, sample_lake.step_keys), sample_lake.diagnose()
    for one in (diagnosis, dataclasses.replace(diagnosis, hang=HANG, facts=(FACT,))):
        for key, kind in json_keys(report_document(one, overview)):
            found.setdefault(key, set()).update({kind} - {""})
    told = {row[0]: set(row[1].split(" or ")) for row in tables("json")[0]}
    assert set(told) == set(found) - CONTAINERS
    assert {key: kinds - told[key] for key, kinds in found.items() if key in told and kinds - told[key]} == {}


def json_keys(value: dict[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """The path of every key in the document, and the type of its value, "" for an empty list."""
    for name, own in value.items():
        key = within + name
        if isinstance(own, dict):
            yield key, "object"
            yield from json_keys(own, f"{key}.")
        elif isinstance(own, list) and any(isinstance(one, dict) for one in own):
            yield key, "list of object"
            for one in own:
                yield from json_keys(one, f"{key}[].")
        elif isinstance(own, list):
            yield from [(key, f"list of {TYPES[type(one)]}") for one in own] or [(key, "")]
        else:
            yield key, TYPES[type(own)]


TYPES = {str: "string", bool: "bool", int: "int", float: "float", type(None): "null"}


RANK = re.compile(r"%q\{\w+\}|%env\{\w+\}%|\{rank\}|(?<=rank-)3")
"""Placeholders for the rank in a recommended name, or in an example of one."""


def test_recommended_names_tell_the_rank():
    words = re.findall(r"[\w./{}%-]+", guide.text("recording"))
    names = [word for word in words if RANK.search(word) and "{step}" not in word]
    assert len(names) > 10
    for name in names:
        assert rank_in_path(Path("traces", RANK.sub("12", name))) == 12, name


def test_recommended_markers_tell_step_and_rank():
    pattern = compile_step_pattern(None)
    templates = re.findall(r'f"((?:epoch|step)\{[^"]+)"', guide.text("recording"))
    assert len(templates) >= 3
    for template in templates:
        text = template.format(epoch=1, step=2003, rank=12)
        marker = parse_marker(pattern, text)
        assert marker is not None, text
        assert (marker.epoch, marker.step, marker.rank) == (1 if "epoch" in template else None, 2003, 12)
    wordings = guide.text("recording").partition("Other wordings that are understood: ")[2].partition(".")[0]
    others = re.findall(r"`([^`]+)`", wordings)
    assert len(others) >= 5
    assert all((marker := parse_marker(pattern, text)) is not None and marker.step == 12 for text in others)
    assert host_range_kind("data_loading") == "data_loading"
    own = re.search(r"--step-pattern '([^']+)'", guide.text("recording"))
    assert own is not None
    assert parse_marker(compile_step_pattern(own[1]), "batch 7") is not None


@pytest.mark.parametrize("suffix", ["-step113.json.gz", ".1700000000000.pt.trace.json.gz"])
def test_recommended_names_of_pytorch_traces_are_understood(tmp_path: Path, suffix: str):
    run = simulate(Job(ranks=2, steps=2, kernels=16, marker="profiler"))
    write(run, tmp_path / "written", "kineto", distributed="absent")
    _inspected(next((tmp_path / "written").glob("*1*.json.gz")), tmp_path / f"rank-12{suffix}")


def test_recommended_name_of_an_nsys_export_is_understood(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16, marker="iteration")), tmp_path / "written", "nsys")
    with open_database(tmp_path / "written" / "rank1.sqlite") as export:
        export.execute(
            "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'"
        )  # the name alone is to tell it
    _inspected(tmp_path / "written" / "rank1.sqlite", tmp_path / "rank-12.sqlite")


def _inspected(written: Path, renamed: Path) -> None:
    shutil.move(written, renamed)
    (finding,) = inspect([renamed]).sources
    (record,) = finding.records
    assert (record.rank, record.rank_told_by, record.steps_from) == (12, "file name", "marker")


def test_recommended_names_of_rocprofv3_are_understood(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16, marker="iteration")), tmp_path / "csv", "rocprof-csv")
    (tmp_path / "traces").mkdir()
    for file in (tmp_path / "csv").glob("*1*_*.csv"):
        tail = re.search(r"(?:kernel|hip|marker|memory|rccl|agent)\w*\.csv$", file.name)
        assert tail is not None, file.name
        shutil.move(file, tmp_path / "traces" / f"rank-12_{tail[0]}")
    (finding,) = inspect([tmp_path / "traces"]).sources
    (record,) = finding.records
    assert (record.rank, record.rank_told_by, record.steps_from) == (12, "file name", "marker")


@pytest.mark.parametrize(("environment", "told_by"), [("torchrun", "RANK"), ("none", "file name")])
def test_recommended_name_of_a_rocpd_database_is_understood(tmp_path: Path, environment: str, told_by: str):
    run = simulate(Job(ranks=13, steps=2, kernels=16, marker="iteration"))
    written = write(run, tmp_path / "written", "rocpd", environment=environment)
    shutil.move(written[-1], tmp_path / "rank-12_results.db")
    (finding,) = inspect([tmp_path / "rank-12_results.db"]).sources
    (record,) = finding.records
    assert (record.rank, record.rank_told_by, record.steps_from) == (12, told_by, "marker")


def test_the_page_takes_its_text_from_the_guide():
    shown = how_to_read()
    terms = re.findall(r"^- \*\*(.+?)\*\*", guide.text("reading"), re.M)
    assert len(terms) > 10
    assert all(f"<strong>{term}</strong>" in shown for term in terms)
    assert "<h" not in shown

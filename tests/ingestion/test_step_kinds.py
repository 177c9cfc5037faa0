"""Kinds of steps: from the markers of serving engines and RL jobs to `jitter steps`, SQL, JSON and the API."""

import re
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.names import StepKind, is_unnumbered_step, parse_step_kind
from tests.support.kineto_traces import call, kernel, step, write
from tests.support.printed import json_of, output_of
from tests.support.serving import TOKENS, ServingJob, write_serving

KINDS = [
    ("execute_context_2(640)_generation_0(0)", StepKind("prefill", 2, 640)),
    ("execute_context_0(0)_generation_64(64)", StepKind("decode", 64, 64)),
    ("execute_context_1(100)_generation_8(8)", StepKind("mixed", 9, 108)),
    ("execute_context_1(100sq=3sk=4)_generation_8(8sq=1)", StepKind("mixed", 9, 108)),
    ("execute_context_0(0)_generation_0(0)", StepKind("idle", 0, 0)),
    ("execute_model context_2(512) generation_0(0)", StepKind("prefill", 2, 512)),
    ("execute_model context_0() generation_4(sq1sk513)", StepKind("decode", 4)),
    ("execute_new_2_cached_0", StepKind("prefill", 2)),
    ("execute_new_0_cached_7", StepKind("decode", 7)),
    ("execute_new_1_cached_7", StepKind("mixed", 8)),
    ("step[EXTEND bs=2 toks=4096]", StepKind("prefill", 2, 4096)),
    ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", StepKind("prefill", 2, 12)),
    ("step[DECODE bs=16]", StepKind("decode", 16, 16)),
    ("step[MIXED bs=2 c=1 g=1]", StepKind("mixed", 2)),
    ("step[IDLE bs=0]", StepKind("idle", 0)),
    ("step[TARGET_VERIFY bs=4]", StepKind("verify", 4)),
    ("step[DRAFT_EXTEND_V2 bs=4]", StepKind("draft", 4)),
    ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", StepKind("draft", 4)),
    ("prefill[bs=2 tok=16384]", StepKind("prefill", 2, 16384)),
    ("decode[bs=64 tok=64]", StepKind("decode", 64, 64)),
    ("[Executor] _forward_step 12: 2 ctx reqs, 0 gen reqs", StepKind("prefill", 2)),
    ("[Executor] _forward_step 12: 2 ctx reqs, 640 ctx tokens, 0 gen reqs", StepKind("prefill", 2, 640)),
    ("[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", StepKind("decode", 32)),
    ("[Executor] _forward_step: 1 ctx reqs, 3 gen reqs", StepKind("mixed", 4)),
    ("generate_sequences", StepKind("rollout")),
    ("update_actor", StepKind("update")),
    ("compute_ref_log_prob", StepKind("score")),
    ("actor_update", StepKind("update")),
    ("actor_compute_log_prob", StepKind("score")),
    ("rollout_generate", StepKind("rollout")),
    ("megatron_policy_worker/train", StepKind("update")),
    ("policy_worker/get_reference_policy_logprobs", StepKind("score")),
    ("execute_context_9999999999(1)_generation_0(0)", StepKind("prefill", None, 1)),
]


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_a_marker_names_the_kind(text, kind):
    assert parse_step_kind(text) == kind


@pytest.mark.parametrize("text", ["ProfilerStep#3", "epoch1_step2003-rank0", "step 12", "forward", "update", None])
def test_other_markers_name_none(text):
    assert parse_step_kind(text) is None


def test_markers_with_a_kind_and_no_number_are_steps():
    assert all(is_unnumbered_step(text) for text, _ in KINDS if "_forward_step " not in text)


def turned(folder: Path, turn: list[str], around: str | None = None) -> list[str]:
    """Return the kinds of the steps of a job that records four turns of these ranges, each with kernels of its own."""
    rows, now = [], 1_000.0
    for number in range(4):
        begin = now
        for part, text in enumerate(turn):
            rows.append(step(ts=now, dur=90.0, name=text.format(number=number)))
            for at in range(3):
                correlation = len(rows)
                rows.append(call("cudaLaunchKernel", now + 10 * at + 1, 4.0, correlation=correlation))
                rows.append(kernel(f"gemm_{part}_{at}", now + 20 * at + 10, 15.0, pid=0, correlation=correlation))
            now += 100
        if around is not None:
            rows.append(step(ts=begin - 1, dur=now - begin, name=around.format(number=number)))
    folder.mkdir()
    write(folder / "rank0.json", rows)
    jitter.ingest(folder, folder / "lake")
    lake = jitter.open(folder / "lake")
    return [lake.kinds[key] for key in lake.step_keys]


@pytest.mark.parametrize(
    ("turn", "around", "kinds"),
    [
        (["rollout", "logprob", "update"], None, ["rollout", "score", "update"]),
        (["generate_rollout", "compute_log_prob", "train_actor"], None, ["rollout", "score", "update"]),
        (["generate {number}", "train_step"], None, ["rollout", "train"]),
        (["prefill_bs1_tok512", "decode_bs32", "decode_bs32"], None, ["prefill", "decode", "decode"]),
        (["prefill", "decode"], "generate", ["prefill", "decode"]),
        (["execute_new_2_cached_0", "execute_new_0_cached_2"], "generate", ["prefill", "decode"]),
        (["execute_model"], "decode", ["serve"]),
    ],
)
def test_words_for_kinds_are_steps_beside_ranges_of_other_kinds(tmp_path, turn, around, kinds):
    assert turned(tmp_path / "job", turn, around) == kinds * 4


def test_a_number_beside_the_word_counts_the_steps(tmp_path):
    assert turned(tmp_path / "job", ["decode step {number}"]) == ["decode"] * 4


@pytest.mark.parametrize(
    ("turn", "kinds"),
    [
        (["rollout {number}", "update {number}"], ["rollout", "update"]),
        (["rollout", "update {number}"], ["rollout", "update"]),
        (["generate {number}", "logprob", "train_step {number}"], ["rollout", "score", "train"]),
        (["rollout step {number}", "train step {number}"], ["rollout", "train"]),
        (["prefill step {number}", "decode step {number}", "decode step {number}"], ["prefill", "decode", "decode"]),
    ],
)
def test_numbers_of_several_kinds_count_turns(tmp_path, turn, kinds):
    assert turned(tmp_path / "job", turn) == kinds * 4


def test_turns_give_equal_numbers_on_ranks_that_began_later(tmp_path):
    for rank, first in enumerate((3, 4)):
        rows, now = [], 1_000.0 + 200.0 * first
        for number in range(first, 7):
            for kind in ("rollout", "update")[number == first and rank :]:
                rows.append(step(ts=now, dur=90.0, name=f"{kind} {number}"))
                rows.append(call("cudaLaunchKernel", now + 1, 4.0, correlation=len(rows)))
                rows.append(kernel(kind, now + 10, 15.0, pid=rank, correlation=len(rows) - 1))
                now += 100
        write(tmp_path / f"rank{rank}.json", rows, before={"distributedInfo": {"rank": rank, "world_size": 2}})
    assert not jitter.ingest(tmp_path, tmp_path / "lake").refused
    lake = jitter.open(tmp_path / "lake")
    ran = lake.sql("select rank, step, string_agg(kernel_name) ran from kernels group by all order by all")
    assert [tuple(row) for row in ran.itertuples(index=False)] == [
        (rank, at, ("rollout", "update")[at % 2]) for rank, first in ((0, 6), (1, 9)) for at in range(first, 14)
    ]


def test_ranks_that_mark_other_kinds_are_told(tmp_path):
    for rank, kinds in enumerate((("rollout", "update"), ("update",))):
        rows = []
        for number in range(3, 7):
            for kind in kinds:
                rows.append(step(ts=1_000.0 + 100 * len(rows), dur=90.0, name=f"{kind} {number}"))
                rows.append(call("cudaLaunchKernel", rows[-1]["ts"] + 1, 4.0, correlation=len(rows)))
                rows.append(kernel(kind, rows[-1]["ts"] + 10, 15.0, pid=rank, correlation=len(rows) - 1))
        write(tmp_path / f"rank{rank}.json", rows, before={"distributedInfo": {"rank": rank, "world_size": 2}})
    (told,) = [line for line in jitter.ingest(tmp_path, tmp_path / "lake").warnings if "of kind" in line]
    assert told.startswith("step 6 is of kind rollout on rank 0, and of kind train on rank 1: ")


@pytest.mark.parametrize("every", [2, 4])
def test_a_generation_now_and_then_is_no_step_of_training(tmp_path, every):
    rows = []
    for number in range(8):
        for kind in ["train step"] if number % every else ["generate", "train step"]:
            name, now = kind if kind == "generate" else f"{kind} {number}", 1_000.0 + 100 * len(rows)
            rows.append(step(ts=now, dur=90.0, name=name))
            rows.append(call("cudaLaunchKernel", now + 1, 4.0, correlation=len(rows)))
            rows.append(kernel(kind, now + 10, 15.0, correlation=len(rows) - 1))
    write(tmp_path / "rank0.json", rows)
    assert not jitter.ingest(tmp_path, tmp_path / "lake").refused
    assert [key.step for key in jitter.open(tmp_path / "lake").step_keys] == list(range(8))


@pytest.mark.parametrize("turn", [["forward", "update"], ["train", "update"], ["decode", "forward"]])
def test_a_word_that_may_be_a_part_of_a_step_is_no_step_alone(tmp_path, turn):
    assert turned(tmp_path / "job", turn) == ["train"] * 4


def test_a_part_of_a_training_step_is_no_step(tmp_path):
    assert turned(tmp_path / "job", ["rollout", "update"], "ProfilerStep#{number}") == ["train"] * 4


def served(folder: Path, engine: str) -> Path:
    """Return the lake of a job of this engine."""
    assert not jitter.ingest(write_serving(folder / "traces", ServingJob(engine=engine)), folder / "lake").refused
    return folder / "lake"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served(tmp_path_factory.mktemp("vllm"), "vllm")


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_every_step_of_an_engine_has_its_kind(engine: str, tmp_path: Path):
    opened = jitter.open(served(tmp_path, engine))
    assert [opened.kinds[key] for key in opened.step_keys] == list(ServingJob().kinds)


def test_every_step_has_its_kind_everywhere(lake: Path, capsys):
    opened = jitter.open(lake)
    assert [opened.kinds[key] for key in opened.step_keys] == list(ServingJob().kinds)
    rows = opened.sql(
        "SELECT DISTINCT kind, requests, tokens FROM rank_steps ORDER BY kind DESC", arrow=True
    ).to_pylist()
    assert rows[0] == {"kind": "prefill", "requests": 4, "tokens": TOKENS}
    assert (rows[1]["kind"], rows[1]["requests"]) == ("decode", 32)
    assert set(opened.losses()["kind"]) == {"prefill", "decode"}
    assert [step["kind"] for step in json_of(capsys, "report", lake, "--json")["steps"]] == list(ServingJob().kinds)
    assert re.search(r"^ *\d+ \(decode\) ", output_of(capsys, "report", lake), re.MULTILINE)
    assert "(decode)" in output_of(capsys, "report", lake, "--markdown")


def test_steps_of_one_kind(lake: Path, capsys):
    rows = json_of(capsys, "steps", lake, "--kind", "decode", "--format", "json")["rows"]
    assert [row["step"] for row in rows] == [at for at, kind in enumerate(ServingJob().kinds) if kind == "decode"]
    assert "prefill" in output_of(capsys, "steps", lake)
    assert main(["steps", str(lake), "--kind", "rollout"]) == 2
    assert "it holds decode, prefill" in capsys.readouterr().err

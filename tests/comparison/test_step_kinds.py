"""Runs of a serving engine are compared by steps of one kind, whatever their mixtures of prefill and decode."""

from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.comparison.build_document import build_document
from jitter.comparison.compare_documents import compare_documents, step_times
from jitter.comparison.document import decode_document, encode_document
from jitter.core.errors import UsageError
from tests.support.serving import ServingJob, write_serving

MIXTURES = {"decodes": ("prefill", *["decode"] * 4) * 6, "prefills": ("decode", "prefill", "prefill") * 10}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, jitter.Lake]:
    root, found = tmp_path_factory.mktemp("kinds"), {}
    for name, kinds in MIXTURES.items():
        traces = write_serving(root / name, ServingJob(kinds=kinds, slow_rank=None))
        assert not jitter.ingest([traces], root / f"{name}-lake", executor=jitter.LocalExecutor()).refused
        found[name] = jitter.open(root / f"{name}-lake")
    return found


def test_mostly_different_kinds_are_not_comparable(lakes: dict[str, jitter.Lake]):
    base, new = (build_document(lake) for lake in lakes.values())
    assert (base.step_kind, new.step_kind) == ("decode", "prefill")
    found = compare_documents([base], new)
    assert found.verdict == "incomparable"
    assert "most steps are of kind decode in one run, prefill in another: choose one with --kind" in found.sentence


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_steps_of_one_kind_are_the_same(lakes: dict[str, jitter.Lake], kind: str):
    documents = [build_document(lake, step_kind=kind) for lake in lakes.values()]
    for document, kinds in zip(documents, MIXTURES.values(), strict=True):
        assert [step.kind for step in document.steps] == list(kinds)
        (team,) = document.teams
        assert [document.steps[at].kind for at in team.steps] == [kind] * kinds.count(kind)
        names = {document.names[place.name] for place in team.places}
        assert ("gemv_skinny" in names, "gemm_128x256" in names) == (kind == "decode", kind == "prefill")
        assert len(step_times(document)) >= kinds.count(kind) - 1
    found = compare_documents(documents[:1], decode_document(encode_document(documents[1]), "new"))
    assert found.verdict == "same"
    assert found.effect is not None
    assert abs(found.effect.difference_ns) < 0.005 * found.effect.base_ns
    assert found.kernels is None or not found.kernels.changes
    assert any(f"Steps of kind {kind} are compared" in note for note in found.notes)


def test_the_command(lakes: dict[str, jitter.Lake], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base, new = (str(lake.root) for lake in lakes.values())
    assert main(["compare", base, new, "--kind", "decode"]) == 0
    assert "Same step time" in capsys.readouterr().out
    assert main(["compare", base, new, "--kind", "rollout"]) == 2
    assert "no step of kind rollout" in capsys.readouterr().err
    assert main(["export", base, "--baseline", str(tmp_path / "base.json")]) == 0
    with pytest.raises(UsageError, match="a baseline of steps of kind decode, not prefill"):
        jitter.compare(tmp_path / "base.json", new, kind="prefill")

"""`jitter report`: which form, where to, over what, and the summary in the terminal."""

import json
import re
import shutil
import webbrowser
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import ExitCode
from jitter.report.forms import SIGNATURES
from jitter.simulate import Fault, Job, simulate, write
from tests.support.printed import json_of, output_of
from tests.support.report_lakes import report_job

pytestmark = pytest.mark.usefixtures("computed_once")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("cli") / "lake").root


def test_html_alone_writes_here_and_says_where(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert output_of(capsys, "report", root, "--html") == "jitter-report.html\n"
    first = (tmp_path / "jitter-report.html").read_text()
    assert main(["report", str(root), "--html"]) == ExitCode.DONE  # its own file is replaced
    assert first.startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["jitter-report.html"]


def test_the_suffix_picks_the_form(root, tmp_path, capsys):
    assert main(["report", str(root), "-o", str(tmp_path / "a.html")]) == ExitCode.DONE
    assert 5 * 10**5 < (tmp_path / "a.html").stat().st_size < 15 * 10**5  # the page draws without a network
    for name, form in (("a.json", "--json"), ("a.md", "--markdown"), ("b.markdown", "--markdown")):
        printed = output_of(capsys, "report", root, form)
        for _ in range(2):  # its own file is replaced
            assert main(["report", str(root), "-o", str(tmp_path / name)]) == ExitCode.DONE
        assert (tmp_path / name).read_text() == printed
    assert main(["report", str(root), "-o", str(tmp_path / "a.pdf")]) == ExitCode.USAGE
    assert "--html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "mark"), [("html", 'content="jitter '), ("json", '"schema_version"'), ("md", "# jitter report")]
)
def test_a_file_of_another_program_needs_force(root, tmp_path, suffix, mark, capsys):
    target, mine = tmp_path / f"a.{suffix}", "# jitter notes\n\n## jitter report of job 12\n"
    target.write_text(mine)
    assert main(["report", str(root), "-o", str(target)]) == ExitCode.USAGE
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == mine
    assert main(["report", str(root), "-o", str(target), "--force"]) == ExitCode.DONE
    assert mark in target.read_text()[:300]


@pytest.mark.parametrize("name", ["", "nowhere/a.html"])
def test_a_place_that_cannot_be_written(root, tmp_path, name, capsys):
    assert main(["report", str(root), "--html", "-o", str(tmp_path / name)]) == ExitCode.USAGE
    assert "internal error" not in capsys.readouterr().err


def test_the_terminal_tells_it_in_a_screen(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = output_of(capsys, "report", root).splitlines()
    assert lines[0] == "All ranks: communication that nothing hides (network)"
    assert len(lines) <= 18
    assert max(map(len, lines)) <= 80
    words = " ".join(output_of(capsys, "report", root, "-v").split())
    # the rank that is late there makes nobody wait: the all-reduce takes far longer
    for told in ("stands out above the run's noise", "rank 2 (node1) has the largest share of the loss"):
        assert told in words
    for told in (
        "aligned at the end of the last collective",
        "All 4 ranks in the lake recorded all 3 steps completely.",
    ):
        assert told in words


_CPU_STALL = Fault.parse("cpu_stall:rank=1,step=2,kernel=9,ms=3")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the traces of a job of 4 ranks."""
    folder = tmp_path_factory.mktemp("recorded") / "traces"
    write(simulate(Job(ranks=4, steps=4, kernels=40, first_step=0, seed=3), [_CPU_STALL]), folder, "nsys")
    return folder


@pytest.fixture
def here(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory with the traces in `traces`."""
    shutil.copytree(recorded, tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_traces_are_ingested_reported_and_drawn(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", "traces"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "Rank 1 (node0000): late kernel launches (CPU), kernel 9" in " ".join(out.split())
    assert out.splitlines()[-1] == "jitter-report.html"
    assert "4 ranks, 4 steps" in err
    assert SIGNATURES["html"][0] in (here / "jitter-report.html").read_bytes()[:2048]
    assert {path.name for path in here.iterdir()} == {"traces", "jitter-lake", "jitter-report.html"}


def test_a_second_report_ingests_only_what_is_new(here: Path, capsys: pytest.CaptureFixture[str]):
    (late,) = here.glob("traces/rank3*")
    late.rename(here / late.name)
    assert main(["report", "traces"]) == ExitCode.DONE
    assert "3 ranks, 4 steps" in capsys.readouterr().err
    (here / late.name).rename(late)
    assert main(["report", "traces"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "1 rank, 4 steps" in err
    assert "3 sources" in err
    assert "4 ranks" in out


def test_the_lake_of_traces_is_chosen(here: Path, capsys: pytest.CaptureFixture[str]):
    out = output_of(capsys, "report", "traces", "-L", "mine", "--json")
    assert json.loads(out)["run"]["ranks"] == 4
    assert {path.name for path in here.iterdir()} == {"traces", "mine"}
    assert output_of(capsys, "report", "-L", "mine", "--json") == out
    assert output_of(capsys, "report", "mine", "--json") == out


def test_the_options_of_ingest_apply_to_traces_alone(here: Path, capsys: pytest.CaptureFixture[str]):
    assert json_of(capsys, "report", "traces", "--step-pattern", "step(?P<step>1)-", "--json")["run"]["steps"] == 1
    assert main(["report", "--rank", "1"]) == ExitCode.USAGE
    assert "--rank is for traces" in capsys.readouterr().err


def test_a_step_pattern_that_matches_nothing_shows_the_markers(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", "traces", "--step-pattern", r"batch (?P<step>\d+)"]) == ExitCode.DONE
    notes = [line for line in capsys.readouterr().err.splitlines() if "--step-pattern" in line]
    assert len(notes) == 1  # not one a rank
    assert "matches no range of the trace; ranges with numbers (N): 'epochN_stepN-rankN-" in notes[0]
    assert main(["ingest", "traces", "--step-pattern", r"step(?P<step>\d+)", "-o", "good"]) == ExitCode.DONE
    assert "--step-pattern" not in capsys.readouterr().err


def test_a_folder_without_traces_is_unusable(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "empty").mkdir()
    assert main(["report", "empty"]) == ExitCode.UNUSABLE_INPUT
    assert "no traces in" in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == {"traces", "empty"}


def test_what_was_taken_is_reported_if_most_traces_are_left_out(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LINES", "8")
    for number in range(5):
        (here / "traces" / f"rank{90 + number}.sqlite").write_bytes(b"SQLite format 3" + bytes(number))
    assert main(["report", "traces"]) == ExitCode.UNUSABLE_INPUT
    out, err = capsys.readouterr()
    assert "5 left out" in err
    assert "Rank 1 (node0000): late kernel launches (CPU), kernel 9" in " ".join(out.split())
    assert re.search(r"^unusable +\d reasons? why files are unusable$", out, re.M)
    assert (here / "jitter-report.html").is_file()


def test_a_lake_among_traces_is_wrong_usage(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", "traces"]) == ExitCode.DONE
    assert main(["report", "jitter-lake", "traces"]) == ExitCode.USAGE
    assert main(["report", "jitter-lake", "-L", "other"]) == ExitCode.USAGE
    assert "jitter-lake: is a lake" in capsys.readouterr().err


def test_a_path_that_is_not_there_is_no_place_for_a_lake(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", "missing"]) == ExitCode.UNUSABLE_INPUT
    assert capsys.readouterr().err == "jitter: missing: no such file or folder\n  give a lake, or the job's traces\n"
    assert {path.name for path in here.iterdir()} == {"traces"}


def test_a_file_that_jitter_did_not_write_stops_before_the_ingest(here: Path):
    (here / "jitter-report.html").write_text("<html>mine</html>")
    assert main(["report", "traces"]) == ExitCode.USAGE
    assert not (here / "jitter-lake").exists()


@pytest.fixture(scope="module")
def ingested(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forms") / "lake"
    assert jitter.ingest([recorded], root).refused == []
    return root


class TestForms:
    """Several forms of one report."""

    @pytest.fixture
    def lake(self, ingested: Path, here: Path) -> Path:
        """Return the working directory, with its lake."""
        shutil.copytree(ingested, here / "jitter-lake")
        return here

    def test_a_page_and_a_document_on_stdout(self, lake: Path, capsys: pytest.CaptureFixture[str]):
        assert main(["report", "--html", "--json"]) == ExitCode.DONE
        out, err = capsys.readouterr()
        assert json.loads(out)["run"]["ranks"] == 4
        assert err.splitlines()[-1] == "jitter-report.html"
        assert SIGNATURES["html"][0] in (lake / "jitter-report.html").read_bytes()[:2048]

    @pytest.mark.parametrize("words", [["jitter-lake"], []])
    def test_the_file_may_follow_its_form(self, words: list[str], lake: Path, capsys: pytest.CaptureFixture[str]):
        files = "--html", "a.html", "--markdown", "a.md", "--json", "a.json"
        assert sorted(output_of(capsys, "report", *words, *files).split()) == ["a.html", "a.json", "a.md"]
        assert SIGNATURES["html"][0] in (lake / "a.html").read_bytes()[:2048]
        assert json.loads((lake / "a.json").read_text())["run"]["ranks"] == 4
        assert main(["report", "jitter-lake", "--json", "a.json"]) == ExitCode.DONE  # replaced

    def test_traces_after_a_form_are_read(self, lake: Path, capsys: pytest.CaptureFixture[str]):
        trace = next((lake / "traces").iterdir()).rename(lake / "rank0.json")
        before = trace.read_bytes()
        assert json_of(capsys, "report", "--json", "rank0.json", "-L", "other")["run"]["ranks"] == 1
        assert trace.read_bytes() == before

    def test_a_file_for_each(self, lake: Path, capsys: pytest.CaptureFixture[str]):
        arguments = ["report", "--html", "--json", "-o", "a.json", "--markdown", "-o", "a.md", "-o", "a.html"]
        assert sorted(output_of(capsys, *arguments).split()) == ["a.html", "a.json", "a.md"]
        assert json.loads((lake / "a.json").read_text())["run"]["ranks"] == 4
        assert (lake / "a.md").read_text().startswith("# jitter report")
        assert SIGNATURES["html"][0] in (lake / "a.html").read_bytes()[:2048]
        assert main(["report", "-o", "a.json", "-o", "a.html"]) == ExitCode.DONE  # suffixes alone; replaced

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["--json", "--markdown"], "both go to stdout"),
            (["-o", "a.json", "-o", "b.json"], "two files of one form"),
            (["--html", "--json", "-o", "a.md"], "picks markdown"),
            (["--html", "--json", "-o", "a.txt"], "picks no form"),
        ],
    )
    def test_what_cannot_be_written_is_wrong_usage(
        self, arguments: list[str], told: str, lake: Path, capsys: pytest.CaptureFixture[str]
    ):
        assert main(["report", *arguments]) == ExitCode.USAGE
        out, err = capsys.readouterr()
        assert out == ""
        assert told in err
        assert {path.name for path in lake.iterdir()} == {"traces", "jitter-lake"}

    def test_open_writes_the_page_and_opens_it(self, lake: Path, monkeypatch: pytest.MonkeyPatch):
        opened: list[str] = []
        monkeypatch.setenv("DISPLAY", ":7")
        monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
        assert main(["report", "--open"]) == ExitCode.DONE
        assert opened == [(lake / "jitter-report.html").as_uri()]

    def test_open_without_a_display_says_so(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("sys.platform", "linux")
        monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail("a browser was started"))
        assert main(["report", "--open", "-o", "mine.html"]) == ExitCode.DONE
        out, err = capsys.readouterr()
        assert out == "mine.html\n"
        assert "no browser" in err

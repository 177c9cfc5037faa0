"""`jitter report`: which form, where to, over what, and the summary in the terminal."""

import pytest

from jitter.cli import main
from jitter.core.errors import ExitCode
from tests.support.report_lakes import report_job


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("cli") / "lake").root


def test_html_alone_writes_here_and_says_where(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(root), "--html"]) == ExitCode.DONE
    assert capsys.readouterr().out == "jitter-report.html\n"
    first = (tmp_path / "jitter-report.html").read_text()
    assert main(["report", str(root), "--html"]) == ExitCode.DONE  # its own file is replaced
    assert first.startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["jitter-report.html"]


def test_the_suffix_picks_the_form(root, tmp_path, capsys):
    assert main(["report", str(root), "-o", str(tmp_path / "a.html")]) == ExitCode.DONE
    assert 5 * 10**5 < (tmp_path / "a.html").stat().st_size < 15 * 10**5  # the page draws without a network
    for name, form in (("a.json", "--json"), ("a.md", "--markdown"), ("b.markdown", "--markdown")):
        capsys.readouterr()
        assert main(["report", str(root), form]) == ExitCode.DONE
        printed = capsys.readouterr().out
        for _ in range(2):  # its own file is replaced
            assert main(["report", str(root), "-o", str(tmp_path / name)]) == ExitCode.DONE
        assert (tmp_path / name).read_text() == printed
    assert main(["report", str(root), "-o", str(tmp_path / "a.pdf")]) == ExitCode.USAGE
    assert "--html" in capsys.readouterr().err


@pytest.mark.parametrize(("suffix", "mark"), [("html", 'content="jitter '), ("json", '"schema_version"')])
def test_a_file_of_another_program_needs_force(root, tmp_path, suffix, mark, capsys):
    target = tmp_path / f"a.{suffix}"
    target.write_text("<html>mine</html>")
    assert main(["report", str(root), "-o", str(target)]) == ExitCode.USAGE
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "<html>mine</html>"
    assert main(["report", str(root), "-o", str(target), "--force"]) == ExitCode.DONE
    assert mark in target.read_text()[:300]


@pytest.mark.parametrize("name", ["", "nowhere/a.html"])
def test_a_place_that_cannot_be_written(root, tmp_path, name, capsys):
    assert main(["report", str(root), "--html", "-o", str(tmp_path / name)]) == ExitCode.USAGE
    assert "internal error" not in capsys.readouterr().err


def test_the_terminal_tells_it_in_a_screen(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", str(root)]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "All ranks: communication that nothing hides (network)"
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert main(["report", str(root), "-v"]) == ExitCode.DONE
    words = " ".join(capsys.readouterr().out.split())
    # the rank that is late there makes nobody wait: the all-reduce takes far longer
    for told in ("stands out above the run's noise", "rank 2 (node1) has the largest share of the loss"):
        assert told in words
    for told in (
        "aligned at the end of the last collective",
        "All 4 ranks in the lake recorded all 3 steps completely.",
    ):
        assert told in words

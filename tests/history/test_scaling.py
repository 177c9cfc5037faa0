"""Throughput over the number of ranks, by the logs of the runs of a history (published figures of TensorFlow)."""

from jitter.cli import main

IMAGES = {128: 118874.19, 256: 219602.73, 512: 388282.87}


def test_images_per_second_over_ranks(tmp_path, capsys):
    """219,602.73 / 256 is 92.4% of 118,874.19 / 128; 388,282.87 / 512 is 81.7% of it."""
    base = str(tmp_path / "history.sqlite")
    for ranks, rate in IMAGES.items():
        folder = tmp_path / f"run{ranks}"
        folder.mkdir()
        (folder / "train.log").write_text(f"Total img/sec on {ranks} GPU(s): {rate} +-12.0\n")
        assert main(["ingest", str(folder), "-o", str(folder / "lake")]) == 0
        assert main(["history", "add", str(folder / "lake"), "--job", "cnn", "--name", f"n{ranks}", "--db", base]) == 0
    capsys.readouterr()
    assert main(["history", "show", "--job", "cnn", "--db", base]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Scaling, by the logs: 118,874 samples/s on 128 ranks, 219,603 samples/s on 256 ranks (92.4% per rank), "
        "388,283 samples/s on 512 ranks (81.7% per rank)."
    ) in printed

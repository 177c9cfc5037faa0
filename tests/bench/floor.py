"""The floor for reading a trace: decompress it and decode its events into typed structs, nothing else."""

import sys
from pathlib import Path

import msgspec
from isal import igzip

_CHUNK = 1 << 19


class _Args(msgspec.Struct, rename={"external_id": "External id"}):
    correlation: int | None = None
    external_id: int | None = None
    stream: int | str | None = None
    device: int | str | None = None
    grid: list[int] | None = None
    block: list[int] | None = None


class _Event(msgspec.Struct):
    ph: str
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: _Args | None = None


def main(path: Path) -> None:
    """Decode all events of a gzip trace, chunk by chunk, cut where an event ends and the next begins."""
    decode = msgspec.json.Decoder(list[_Event]).decode
    count, held = 0, b""
    with igzip.open(path) as file:
        while chunk := file.read(_CHUNK):
            held += chunk
            if not count and b"[" in held:
                held = held[held.index(b"[", held.index(b'"traceEvents"')) + 1 :]
            cut = held.rfind(b"},\n")
            if cut > 0:
                count += len(decode(b"[" + held[: cut + 1] + b"]"))
                held = held[cut + 2 :]
    print(count)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

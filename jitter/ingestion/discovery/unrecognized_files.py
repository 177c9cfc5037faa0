"""Files that no reader accepts: damaged traces, formats that jitter does not read, others; a message for each."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jitter.core.compression import is_packed, read_head
from jitter.core.errors import JitterError, UnreadableTraceError, reason_of
from jitter.core.formatting import format_some
from jitter.core.grouping import by_key
from jitter.readers.sqlite import sniff_tables

_HEAD_BYTES: Final = 1 << 16
_ONLY_TRACE: Final = r"\.pt\.trace\.json(?:\.gz|\.zst)?$|\.rpd$|\.xplane\.pb$|kernel_trace\.csv$"
_MAY_BE_TRACE: Final = re.compile(
    rf"(?i){_ONLY_TRACE}|\.(?:sqlite3?|db|rocpd)$|(?:^|_)results(?:_.*)?\.csv$|(?:^|_)results\.json(?:\.gz)?$"
    r"|(?:trace|rank|kineto|profile|worker)[^/]*\.json(?:\.gz|\.zst)?$"
)
"""Names that only traces have; an empty file of such a name is a damaged trace."""
_PACKED_JSON: Final = (".json.gz", ".json.zst")
_JSON: Final = r"\.json(?:\.gz|\.zst)?$"
_DAMAGED: Final = (
    (_ONLY_TRACE, ""),
    # with events, it is a trace of another tool
    (_JSON, r'(?!.*"ph")(?:\xef\xbb\xbf)?\s*\{\s*"(?:traceEvents|schemaVersion|rocprofiler-sdk-tool)"'),
    (_JSON, r'.*"(?:rocprofiler-sdk-tool|buffer_records|kernel_dispatch)"'),
    (r"\.(?:sqlite3?|db|rpd|rocpd)$",
     r".*(?:rocpd_(?:op|api|string|kernel_dispatch|info_)|CUPTI_ACTIVITY_KIND_|\bBeginNs\b)"),
    (r"(?:^|_)results(?:_.*)?\.csv$",
     r"(?i)(?=[^\n]*(?:kernel_?name|dispatch_?id))(?=[^\n]*(?:begin|start|end)_?(?:ns|timestamp))"),
)  # fmt: skip
"""Names and beginnings of damaged traces: files that no reader accepts, and of no format of `_FORMATS`."""
_REPORTS: Final = {".nsys-rep", ".qdrep"}
_NEWER_REPORTS: Final = (
    "reports written long after the exports beside them",
    "if the job was recorded again, export them again: `nsys export -t sqlite --lazy=false -f true REPORT.nsys-rep`",
)
_LONG_AFTER_S: Final = 600
"""A report that is newer than its export by no more may have been copied later."""
_MOST_REPORTS: Final = 3
"""Reports with an error of their own; more are summarized in one."""
_MOST_DESCRIBED: Final = 3
"""Files of paths without any trace that are described; the others are only counted."""
_NUMBER: Final = re.compile(r"\d+")
_SUFFIX: Final = re.compile(r"\.[a-z][\w#]*(?:\.gz|\.zst)?$")


class DamagedTraceError(UnreadableTraceError):
    """A file that is a trace by its name or contents and that no reader can read."""

    reason = "damaged"


class UnrecognizedFiles:
    """Files that no reader accepts: damaged traces, which have an error, and others."""

    def __init__(
        self,
        files: Mapping[Path, bool],
        failures: Mapping[Path, JitterError],
        recordings: Sequence[Path],
        formats: str,
    ) -> None:
        """Explain each of `files`, of which it is given whether the user named it: then it was meant to be a trace.

        `failures` are the errors of readers that examined one. `recordings` are the paths of recognized recordings,
        `formats` the supported formats.
        """
        self._files = files
        self._failures = failures
        self._formats = formats
        self._patterns = {_name_pattern(path) for path in recordings}
        self._folders = {path.parent for path in recordings}
        self._stems = by_key((_stem_pattern(path), _SUFFIX.sub("", path.name)) for path in recordings)
        """Names of recordings without their suffixes, by `_stem_pattern`."""
        self._unsupported: dict[tuple[str, str], list[Path]] = {}
        """Files by format and advice that jitter does not read, and that have no error of their own."""
        errors: dict[Path, JitterError] = {}
        for path, named in files.items():
            try:
                error = self._explain(path, named)
            except OSError as reason:
                error = UnreadableTraceError(f"{path}: {reason_of(reason)}", "make it readable")
            if error is not None:
                errors[path] = error
        self.others = len(files) - len(errors)
        """Number of files without an error."""
        self.errors = _summarize_reports(errors)

    def _explain(self, path: Path, named: bool) -> JitterError | None:
        if path.suffix in _REPORTS:
            export = _export_of(path)
            if export is not None and path.stat().st_mtime - export.stat().st_mtime > _LONG_AFTER_S:
                self._unsupported.setdefault(_NEWER_REPORTS, []).append(path)
            return _explain_report(path, named)
        with path.open("rb"):
            pass
        is_rank = _name_pattern(path) in self._patterns
        kind = unsupported_format(path)
        if kind is not None:
            if named or is_rank:
                what = f"{path}: one of the {kind.files}, which jitter does not read"
                return UnreadableTraceError(what, kind.instead)
            if not (kind.is_excerpt and path.parent in self._folders):
                self._unsupported.setdefault((kind.files, kind.instead), []).append(path)
            return None
        if is_rank or self._is_other_rank(path) or _is_damaged_trace(path):
            failure = self._failures.get(path)
            what = f"{path}: a damaged trace ({_describe_damage(path)})" if failure is None else failure.message
            return DamagedTraceError(what, "copy it again, or record again")
        if path.suffix == ".sqlite" and not sniff_tables(path):
            return DamagedTraceError(
                f"{path}: damaged beyond reading ({path.stat().st_size:,} bytes, no list of tables)",
                "copy it again, or export the report again: nsys export --type sqlite REPORT.nsys-rep",
            )
        hint = f"it reads {self._formats}; of logs: jitter explain evidence"
        return UnreadableTraceError(_unlike_all(path), hint) if named else None

    def _is_other_rank(self, path: Path) -> bool:
        """Return whether a trace's name is that of a recording with another number, whatever the suffixes."""
        stems = self._stems.get(_stem_pattern(path), ())
        return bool(stems) and _SUFFIX.sub("", path.name) not in stems and _MAY_BE_TRACE.search(path.name) is not None

    def describe(self) -> list[str]:
        """Return one sentence for each of the first files: the format that it resembles, and why it is not that."""
        return [_unlike_all(path) for path in sorted(self._files)[:_MOST_DESCRIBED]]

    def notes(self) -> list[str]:
        """Return one sentence per kind of file that jitter does not read, with what to do."""
        return [
            f"{format_some(list(map(str, paths)), 1)}: {kind}, which jitter does not read; {instead}"
            for (kind, instead), paths in self._unsupported.items()
        ]


def is_report_without_export(path: Path) -> bool:
    """Return whether the file is an Nsight Systems report, which only nsys can read, and no export lies beside it."""
    return path.suffix in _REPORTS and _export_of(path) is None


def _export_of(report: Path) -> Path | None:
    exports = report.with_suffix(".sqlite"), report.with_name(f"{report.stem}_pqtdir")
    return next((path for path in exports if path.exists()), None)


def _explain_report(report: Path, named: bool) -> JitterError | None:
    export = _export_of(report)
    if export is not None and not named:
        return None
    target = shlex.quote(str(report.with_suffix(".sqlite")))
    command = f"nsys export -t sqlite --lazy=false -o {target} {shlex.quote(str(report))}"
    way = f"run: {command}" if export is None else f"its export is {export}"
    return UnreadableTraceError(f"{report}: an Nsight Systems report, not an export", way)


def _summarize_reports(errors: dict[Path, JitterError]) -> dict[Path, JitterError]:
    """Replace the errors of many reports that were not exported by one."""
    reports = [path for path in errors if path.suffix in _REPORTS]
    if len(reports) <= _MOST_REPORTS:
        return errors
    folders = sorted({str(path.parent) for path in reports})
    patterns = " ".join(f"{shlex.quote(folder)}/*{reports[0].suffix}" for folder in folders[:_MOST_REPORTS])
    error = UnreadableTraceError(
        f"{reports[0]} and {len(reports) - 1} more: Nsight Systems reports, not exports",
        f"run: for report in {patterns}; do "
        'nsys export -t sqlite --lazy=false -o "${report%.*}.sqlite" "$report"; done',
    )
    error.files = len(reports)
    kept = {path: path_error for path, path_error in errors.items() if path not in set(reports)}
    return {**kept, reports[0]: error}


def _unlike_all(path: Path) -> str:
    return f"{path}: not a trace that jitter reads ({describe_nearest(path)})"


def _name_pattern(path: Path) -> tuple[str, str]:
    """Return the names of the folder and the file with each number replaced: equal for the ranks of one job."""
    return _NUMBER.sub("#", path.absolute().parent.name), _NUMBER.sub("#", path.name)


def _stem_pattern(path: Path) -> tuple[str, str]:
    folder, name = _name_pattern(path)
    return folder, _SUFFIX.sub("", name)


def _is_damaged_trace(path: Path) -> bool:
    """Return whether the contents or the name of a file that no reader accepts show that it is a trace."""
    name = path.name.lower()
    if path.stat().st_size == 0:
        return path.suffix != ".sqlite" and _MAY_BE_TRACE.search(name) is not None
    head = read_head(path, _HEAD_BYTES)
    return _is_invalid_pack(path) or any(
        re.search(of_name, name) and re.match(of_head.encode("latin-1"), head, re.DOTALL)
        for of_name, of_head in _DAMAGED
    )


def _describe_damage(path: Path) -> str:
    size = path.stat().st_size
    if size == 0:
        return "0 bytes"
    if _is_invalid_pack(path):
        return f"{size:,} bytes that are not valid {'zstd' if path.suffix.lower() == '.zst' else 'gzip'} data"
    return f"{size:,} bytes; no reader recognizes them"


def _is_invalid_pack(path: Path) -> bool:
    """Return whether the name says that the data is packed, and nothing can be unpacked."""
    return path.name.lower().endswith(_PACKED_JSON) and not (is_packed(path) and read_head(path, _HEAD_BYTES))


_PACKED: Final = r"(?:\.gz|\.zst)?$"
_EXPORT: Final = "export the report as SQLite: `nsys export -t sqlite --lazy=false REPORT.nsys-rep`"
_AMD: Final = "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`"
_PYTORCH: Final = "export PyTorch profiles with `prof.export_chrome_trace(...)`"
_KERNEL_TRACE: Final = "record without counters: `rocprofv3 --kernel-trace`"
_OTHER_DEVICE: Final = "jitter reads recordings of CUDA, ROCm and XPU devices"
_EXECUTION: Final = (
    "it holds the operators and no times of GPUs: give the PyTorch profiler's trace of the same steps, which "
    "`prof.export_chrome_trace(...)` writes"
)
_NSYS_TABLE: Final = r"CUPTI_ACTIVITY_KIND_|TARGET_INFO_|NVTX_EVENTS|StringIds"


class UnsupportedFormat(NamedTuple):
    """A profile format that jitter does not read. A file has it if all patterns that are given match."""

    files: str
    """Name of the kind of files, in the plural."""
    instead: str
    """Advice on recording or exporting a format that jitter reads."""
    name: str = ""
    """Pattern of the file's name, in any case."""
    head: str = ""
    """Pattern at the beginning of the unpacked contents."""
    tails: tuple[str, ...] = ()
    """Patterns of the contents' last part, in any case."""
    is_excerpt: bool = False
    """Whether it is made of a recording, so that beside one it is not worth a word."""

    def fits(self, path: Path, head: bytes) -> bool:
        """Return whether a file with this beginning has the format."""
        if not re.search(self.name, path.name, re.IGNORECASE) or not re.match(self.head.encode(), head, re.DOTALL):
            return False
        if not self.tails:
            return True
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
            tail = file.read(_HEAD_BYTES)
        return all(re.search(pattern.encode(), tail, re.IGNORECASE) for pattern in self.tails)


_EXPORT_HEAD: Final = rf".{{0,65000}}?(?:{_NSYS_TABLE})"
_FORMATS: Final = tuple(
    UnsupportedFormat(*row)
    for row in (
        ("Chakra execution traces", _EXECUTION, "", r'\s*\{\s*"schema"\s*:\s*"[^"]{0,40}chakra'),
        ("PyTorch execution traces", _EXECUTION, "",
         r'\s*\{\s*"schema"\s*:\s*"[\d.]{1,20}"\s*,\s*"pid"\s*:.{0,400}?"nodes"\s*:\s*\['),
        ("Chakra execution traces", _EXECUTION, r"\.et$"),
        ("Nsight Systems exports as JSON", _EXPORT, "", rf'\s*\{{.{{0,60000}}?"[^"]{{0,80}}(?:{_NSYS_TABLE})'),
        ("Nsight Systems exports as JSON", _EXPORT, "",
         r'\s*\{.{0,60000}?"(?:CudaEvent|NvtxEvent|TraceProcessEvent|GlobalVid|globalTid)"'),
        ("Nsight Systems exports as HDF5", _EXPORT, "", r"\x89HDF\r\n\x1a\n" + _EXPORT_HEAD),
        ("Nsight Systems exports as Arrow", _EXPORT,
         r"^(?:(?:CUPTI_|TARGET_INFO_|NVTX_|META_DATA_|ENUM_|OSRT_).*|StringIds)\.arrow$"),
        ("Nsight Systems exports as Arrow", _EXPORT, "", r"(?:ARROW1|\xff\xff\xff\xff)" + _EXPORT_HEAD),
        ("tables of `nsys stats`", _EXPORT, "",
         r"(?:[^,]{0,2000}?\n)?(?:Start \(ns\),Duration \(ns\),|Time \(%\),Total Time \(ns\),)", (), True),
        ("tables of nvprof", "record with `nsys profile -t cuda,nvtx`", "",
         r".{0,2000}?==\d+== (?:NVPROF is profiling|Profiling result)"),
        ("unfinished Nsight Systems reports", "convert with `QdstrmImporter -i FILE`", r"\.qdstrm$"),
        ("Nsight Compute reports", "record with `nsys profile -t cuda,nvtx`", r"\.ncu-rep$"),
        ("Perfetto traces of other tools, or packed", _AMD,
         rf"\.(?:pftrace|perfetto-trace){_PACKED}|perfetto[^/]*\.proto{_PACKED}"),
        ("files packed twice", "unpack it once: `gunzip FILE`", "", r"\x1f\x8b\x08"),
        # nsys-jax packs tables of `nsys stats` beside its report
        ("packed databases or reports", "unpack it: `gunzip FILE`, `zstd -d FILE` or `unxz FILE`",
         r"(?:\.(?:sqlite3?|db|rpd|nsys-rep|qdrep|xplane\.pb)|(?<!cuda_gpu)(?<!gpu_proj)_trace\.csv)"
         r"\.(?:gz|zst|xz|bz2)$"),
        ("files packed with xz", "unpack it: `unxz FILE`", "", r"\xfd7zXZ\x00"),
        ("files packed with bzip2", "unpack it: `bunzip2 FILE`", "", r"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
        ("files packed with LZ4", "unpack it: `lz4 -d FILE`", "", r"\x04\x22M\x18"),
        ("archives of 7-Zip or RAR", "unpack it, or pack the traces as .zip or .tar.gz", "",
         r"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07"),
        ("pointers of Git LFS in place of files", "fetch the files: `git lfs pull`", "",
         r"version https://git-lfs\.github\.com/spec/"),
        ("tables of performance counters", _KERNEL_TRACE, r"\.csv$", r"[^\n]{0,2000}\bCounter_Name\b", (), True),
        ("tables of Omnitrace or rocprof-sys", _AMD, "",
         r'\s*\{\s*"(?:timemory|omnitrace|rocprofiler-systems)"\s*:', (), True),
        ("tables of `nvidia-smi` without the names of their columns",
         "record them with `--format=csv`, without `noheader`", "", r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, "),
        ("databases dumped as SQL", "make the database again: `sqlite3 FILE.db < FILE.sql`", "",
         r"\s*(?:PRAGMA|BEGIN|CREATE).{0,60000}?(?:rocpd_|CUPTI_ACTIVITY_KIND_)"),
        ("profiles of Ascend NPUs", _OTHER_DEVICE, r"\.(?:json|csv)$",
         r'\s*\[.{0,60000}?"Ascend Hardware"|(?:Step Id,)?Device_id,.{0,400}?(?:Accelerator Core|OP Type)'),
        ("profiles of ONNX Runtime", _PYTORCH, "", r'\s*\[\s*\{\s*"cat"\s*:\s*"(?:Session|Node)"'),
        ("profiles of PyTorch without Kineto", _PYTORCH, "", r'\s*\[.{0,60000}?"pid"\s*:\s*"(?:CPU|CUDA) functions"'),
        ("profiles of Proton (Triton)", _PYTORCH, "", r'\s*\[\s*\{.{0,400}?"frame"\s*:.{0,400}?"ROOT"'),
        ("OTF2 traces", _AMD, r"\.otf2$"),
        ("OTF2 traces", _AMD, "", r"OTF2"),
        ("protobuf files", _PYTORCH, r"(?<!\.xplane)(?<!\.hlo)\.pb$"),
        # a table of operators or kernels has columns of both kinds
        ("Parquet tables of events", "give the profiler's own traces, or a folder of `nsys export -t parquetdir`",
         r"\.parquet$", "", (r"dur|(?:end|stop)_?(?:ns|time)", r"kernel|\bop_|operator")),
    )
)  # fmt: skip


def unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the format of a file; None if it is none of these or unreadable."""
    try:
        head = read_head(path, _HEAD_BYTES)
        return next((candidate for candidate in _FORMATS if candidate.fits(path, head)), None)
    except (OSError, JitterError):
        return None


_RESEMBLED: Final = (
    (rb"\Z", "it is empty, or its packed data is damaged from the beginning on"),
    (rb"SQLite format 3\0", "an SQLite database, damaged or without tables of nsys (CUPTI_ACTIVITY_…) and rocprof"),
    (rb"PK\x03\x04|.{257}ustar",
     "an archive whose first members are not named like recordings: name the archive itself, to have it read"),
    (rb'\s*(?:\{.*"traceEvents"|\[.*"ph"\s*:)',
     "a Chrome trace of another tool: PyTorch's have events of the categories kernel, cpu_op, cuda_runtime, …"),
    (rb'\s*(?:\{|\[\s*(?:[{\["\]]|[\d.eE+-]+(?:,\s|\]\s*\Z)))',
     "JSON, and no list of trace events (traceEvents)"),
    (rb".*\0", "binary data of no known kind"),
    (rb"[^\n:]*,[^\n:]*,[^\n:]*\n[^\n]*,[^\n]*,",
     "a table without columns of kernels' names and times, as rocprof's have"),
    (rb"", "text: neither JSON nor CSV of a profiler, nor a log with a measurement or an error"),
)  # fmt: skip
"""What the beginnings of files that no reader accepts resemble; the first one counts."""


def describe_nearest(path: Path) -> str:
    """Return what a file that no reader accepts resembles, and why it is not that."""
    head = read_head(path, _HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
    return next(words for pattern, words in _RESEMBLED if re.match(pattern, head, re.DOTALL))

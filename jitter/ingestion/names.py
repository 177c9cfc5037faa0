"""Names of steps and ranks: in host ranges, files and folders, and by the user's regular expressions.

Only a global rank is a rank: `tp_rank_1`, `local_rank 3` or `node-rank=0` number something else and never count.
"""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from jitter.core.errors import UsageError
from jitter.lake.records import TRAIN

_OTHER_RANKS: Final = (
    *("local", "tp", "pp", "dp", "cp", "ep", "mp", "sp", "etp", "edp", "cdp", "vp", "vpp", "ddp", "fsdp", "hsdp"),
    *("tensor", "pipeline", "pipe", "data", "expert", "model", "context", "sequence", "parallel", "mpu", "stage"),
    *("lora", "low"),
    *("node", "machine", "host", "server", "group", "intra", "inner", "inter", "device", "numa", "attn", "moe"),
)
"""Words that before "rank" say that it is not the global one."""
_SEPARATORS: Final = r"[_\-. ]"
GLOBAL_RANK: Final = (
    r"(?<![a-z])"
    + "".join(rf"(?<!(?<![a-z]){word})(?<!(?<![a-z]){word}{_SEPARATORS})" for word in _OTHER_RANKS)
    + rf"(?:(?:global|world){_SEPARATORS}?)?rank"
)
"""Regular expression of the word for a global rank, for patterns that ignore case."""

_STRONG: Final = re.compile(rf"(?i){GLOBAL_RANK}[_\-.=:\[ ]?(?P<rank>\d{{1,9}})(?!\d)")
_FOLDER_OF_RANK: Final = re.compile(
    rf"(?i)(?:(?:global|world){_SEPARATORS}?)?rank(?:{_SEPARATORS}|=)?\d{{1,9}}(?:\.[a-z.]+)?"
)
"""`rank3`, also of what was in `rank3.tar.gz`."""
_WORKER: Final = re.compile(r"(?i)(?:gpu|worker|trainer|procid)[_\-.=]?\d{1,9}")
_SGLANG: Final = re.compile(r"(?i)-TP-(?P<rank>\d{1,5})(?P<rest>(?:-[A-Z]+-\d+)*)(?:-[A-Z]+)?(?=\.)")
_RECORDING: Final = (
    r"(?i)(?:^|[_\-.])(?:report|profile|prof|trace|nsys|timeline)(?:[_\-.]r?|[_\-]rank)(?P<rank>\d{1,4})"
    # nsys adds the number of a capture range
    r"(?=$|(?:\.\d{1,4}(?=\.(?:sqlite|nsys-rep|qdrep)$))?\.[a-z])"
)
_WEAK: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)(?<![a-z])worker[_\-.]?(?P<rank>\d{1,9})(?!\d)",
        r"(?i)kineto[_\-.](?P<rank>\d{1,9})(?!\d)",
        r"(?i)(?<![a-z])(?:gpu|trainer)[_\-.]?(?P<rank>\d{1,4})(?!\d)(?![_\-.]?of)",
        _RECORDING,
        r"(?i)^(?P<rank>\d{1,4})(?=\.pt\.trace\.json)",
        r"(?i)(?<![a-z])procid[_\-.=]?(?P<rank>\d{1,9})(?!\d)",
        # NVIDIA's recipes: Slurm's job, node and process; not a date and a time
        r"(?i)(?:^profile|_\d{1,6}g)_(?!20\d{6}_)\d{5,10}_\d{1,4}_(?P<rank>\d{1,5})(?=\.)",
    )
)
_OTHER_NUMBERS: Final = re.compile(r"(?i)(?<![a-z])(?:tp|pp|dp|cp|ep|mp|sp|vpp|etp|edp)[_\-.]?(?:rank[_\-.]?)?\d")
_HOST_AND_PROCESS: Final = re.compile(r"_\d{1,10}\.\d{13,20}\.pt\.trace\.json")
"""In a name that PyTorch's own handler gives, after the host's name: `worker-3_4242.1700000000000.pt.trace.json`."""
_PROCESS: Final = re.compile(r"\d{1,10}_[a-z_]*(?:trace|results)\.(?:csv|db|json|pftrace)$")
"""A file of rocprofv3 that its own default names, in a folder of the host's name: `worker-3/4242_kernel_trace.csv`."""
_NODE: Final = re.compile(
    r"(?i)(?<![a-z])(?:node|host|machine|server|pod)(?:[_\-.]?(?:id|rank))?[_\-.]?(?P<number>\d+)"
)
"""A numbered node: the number of a GPU or worker beside it counts within the node."""
_YEARS: Final = range(1990, 2100)


class _NamedRank(NamedTuple):
    """A rank in a file's path. A strong one says "rank"; a weak one is a number where tools put the rank."""

    rank: int
    is_strong: bool


def rank_in_path(path: Path, *, is_window: bool = False) -> int | None:
    """Return the rank in the file's name, else in the name of the nearest folder that has one; None if none has.

    A folder of a rank (`rank3`) counts before a number in the file's name. A number is no rank if the folder above has
    another one: within a node, or of what, is then unknown. That of a folder of recordings (`profile_1`) is of a run.
    So may be that of a folder further above with other words (`llama_gpu8`), unless folders beside it have other
    numbers. With `is_window`, the number in the file's name counts the windows of one process, and is no rank.
    """
    names = [path.name, *(parent.name for parent in path.parents), ""]
    ranks = {place: rank for place, name in enumerate(names) if (rank := _rank_in_part(name)) is not None}
    places = [
        place
        for place, rank in ranks.items()
        if rank.is_strong or (place >= is_window and (place < 2 or _is_one_of_several(path.parents[place - 1])))
    ]
    folders = [place for place in places if _FOLDER_OF_RANK.fullmatch(names[place])]
    place = next(iter(places if 0 in ranks and ranks[0].is_strong else [*folders, *places]), None)
    if place is None or ranks[place].is_strong:
        return None if place is None else ranks[place].rank
    above = None if re.search(_RECORDING, names[place + 1]) else ranks.get(place + 1)
    is_of_other = above is not None and above.rank != ranks[place].rank
    is_of_node = (place == 1 and _PROCESS.match(path.name)) or _NODE.search(f"{names[place + 1]}/{names[place]}")
    return None if is_of_other or is_of_node else ranks[place].rank


def _is_one_of_several(folder: Path) -> bool:
    """Return whether beside a folder is another one whose name differs by its numbers alone; true if that is unknown.

    What is beside it is not known within an archive, nor of a folder that may not be listed. One that is named after a
    worker alone (`worker_3`) is one of several.
    """
    if _WORKER.fullmatch(folder.name):
        return True
    alike = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", folder.name))))
    try:
        with os.scandir(folder.parent) as beside:
            return not folder.exists() or any(
                alike.fullmatch(other.name) and other.name != folder.name for other in beside
            )
    except OSError:
        return True


def has_unlike_numbers(path: Path) -> bool:
    """Return whether the names of a file and of its folder have two numbers, of which either may be a rank."""
    of_file, of_folder = map(_rank_in_part, (path.name, path.parent.name))
    return of_file is not None and of_folder is not None and of_file.rank != of_folder.rank


def node_in_path(path: Path, host: str | None) -> int | None:
    """Return the number of the node that the name of a file, or of its folder, states; None if neither does.

    A number that may be part of the `host`'s own name is no such number, nor is one where none named with 0 lies beside
    it: the first node has the number 0.
    """
    for place in (path, path.parent):
        for match in _NODE.finditer(place.name):
            begin, end = match.span("number")
            first = place.with_name(place.name[:begin] + "0" * (end - begin) + place.name[end:])
            is_of_host = host is None or re.search(rf"(?i){re.escape(match[0])}(?!\d)", host) is not None
            if not is_of_host and first.exists():
                return int(match["number"])
    return None


def stated_rank(path: Path) -> int | None:
    """Return the rank that the file's own name states with the word "rank"; None if it does not."""
    name_rank = _rank_in_part(path.name)
    return name_rank.rank if name_rank is not None and name_rank.is_strong else None


def _rank_in_part(part: str) -> _NamedRank | None:
    strong = list(_STRONG.finditer(part))
    if strong:
        named = [match for match in strong if match[0].lower().startswith(("global", "world"))]
        return _NamedRank(int((named or strong)[-1]["rank"]), True)
    sglang = _SGLANG.search(part)
    if sglang is not None:
        # with -DP-, -PP- or -EP- the global rank depends on their sizes, which the name does not state
        return None if sglang["rest"] else _NamedRank(int(sglang["rank"]), False)
    if _OTHER_NUMBERS.search(part) or _HOST_AND_PROCESS.search(part):
        return None
    for pattern in _WEAK:
        matches = list(pattern.finditer(part))
        if matches and int(matches[-1]["rank"]) not in _YEARS:
            return _NamedRank(int(matches[-1]["rank"]), False)
    return None


# a hyphen after another separator is a minus sign: ProfilerStep#-1 is no step, step-1 is one
_SEPARATOR = r"[\s_:=#/\-\[(]*(?<![\s:=#/\[(]-)"
_EPOCH = rf"(?:(?<![a-z])epoch{_SEPARATOR}(?P<epoch>\d+)\D*?)?"
_NUMBERED = r"(?:[\s_\-]?(?:num(?:ber)?|idx|index|id)(?![a-z]))?"


def _not_after(*words: str) -> str:
    return "".join(rf"(?<!{word})(?<!{word}[_\- ])" for word in words)


_PART_OF_A_STEP = _not_after(
    *("micro", "mini", "sub", "accum", "accumulate", "accumulation", "acc", "forward", "backward", "fwd", "bwd")
)
_DATA_BATCH = _not_after("micro", "mini", "sub", "load", "next", "get", "fetch", "put")
_COUNTER = (
    r"(?:(?<![a-z])(?:profiler?step|(?:train(?:ing)?|global)?[\s_\-]?"
    rf"{_PART_OF_A_STEP}(?:step|iteration|iter){_NUMBERED}){_SEPARATOR}"
    r"|(?<![a-z])_forward_step\s+"  # TensorRT-LLM's executor
    rf"|(?<![a-z]){_DATA_BATCH}batch(?:[\s_#]+|[\s_\-]?(?:idx|index|id|num(?:ber)?)(?![a-z]){_SEPARATOR})"
    r"|(?<![a-z])(?<![a-z][\s_.\-])(?:it|update)[\s_:=#]+"
    # after an epoch a batch has a number; alone, `batch=32` is its size
    rf"|(?(epoch)(?<![a-z]){_DATA_BATCH}batch{_SEPARATOR}|(?!)))"
)
_STEP = r"(?P<step>\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?![\d.])"
_RANK = rf"(?:.*?{GLOBAL_RANK}{_SEPARATOR}(?P<rank>\d+))?"

DEFAULT_STEP_PATTERN: Final = rf"(?i){_EPOCH}{_COUNTER}{_STEP}{_RANK}"
"""`epoch1_step2003-rank0-…`, `ProfilerStep#12`, `step 12`, `train#step_num=12#`, `iteration: 12`, `batch_idx=12`."""

_RANK_AND_BLANKS: Final = rf"[\W_]{{0,8}}(?:{GLOBAL_RANK}{_SEPARATOR}\d{{1,9}}[\W_]{{0,8}})?"
COUNTED: Final = re.compile(
    rf"(?i){_RANK_AND_BLANKS}{_EPOCH}(?:(?:train(?:ing)?|global)[\s_\-]?)?"
    rf"(?:(?:mini[\s_\-]?)?batch(?:es)?|steps|iterations|its?){_NUMBERED}{_SEPARATOR}(?P<step>\d{{1,18}})"
    rf"(?:\s?(?:/|of)\s?\d{{1,18}})?{_RANK_AND_BLANKS}"
)
"""A text with a number that may be a step's, or a size, or begin anew within each step: `mini-batch 5`, `batch: 5`,
`Batch5/100`, `steps5`. Which of these it is, the other ranges of the kind tell."""
ONLY_EPOCH: Final = re.compile(
    rf"(?i)[\W_]{{0,8}}(?:train(?:ing)?[\s_\-]?)?epoch{_SEPARATOR}(?P<epoch>\d{{1,18}})"
    rf"(?:\s?(?:/|of)\s?\d{{1,18}})?[\W_]{{0,8}}"
)
ANY_RANK: Final = re.compile(rf"(?i){GLOBAL_RANK}{_SEPARATOR}(?P<rank>\d{{1,9}})(?!\d)")

BESIDE_TRAINING = re.compile(
    r"(?i)(?<![a-z])(?:save|checkpoint\w*|ckpt|valid(?:ation|ate|ating)?|val|eval(?:uation|uate|uating)?|test(?:ing)?"
    r"|sanity)(?![a-z])"
)
"""A checkpoint, a validation or a test, whose numbers are not training steps."""
_UNNUMBERED = re.compile(
    r"\[pl\]\[profile\]run_training_batch|run_training_batch"  # Lightning
    r"|(?:DeepSpeed|Pipeline)Engine\.train_batch"
    r"|(?i:(?:train(?:ing)?|run)[ _-]?(?:one[ _-]?)?(?:step|iter(?:ation)?|batch))"
)
_DATA_LOADING = re.compile(
    r"(?i)enumerate\(dataloader\)|data[ _\-]?load|load[ _\-]?(?:data|batch)|next[ _\-]?batch|get[ _\-]?batch"
    r"|batch[ _\-]?generator|input[ _\-]?pipeline|data[ _\-]?(?:wait|fetch|iter|time)|fetch[ _\-]?(?:data|batch)"
)
_CHECKPOINT = re.compile(
    r"(?i)(?<![a-z])(?:save|saving|write|writing|dump|store)[ _.\-]*(?:\w{0,64}[ _.\-])?"
    r"(?:checkpoint|ckpt|state_?dict|model|weights)s?(?![a-z])"
    r"|(?<![a-z])(?:checkpoint|ckpt)s?[ _\-]*(?:saving|save|writing|write)(?![a-z])"
    r"|(?<![a-z])(?:torch|dcp)\.(?:async_)?save(?![a-z])"
)
_VALIDATION = re.compile(
    r"(?i)(?<![a-z])(?:run[ _\-]?)?(?:validat(?:ion|e|ing)|evaluat(?:ion|e|ing)|eval)"
    r"(?:[ _\-]*(?:step|loop|epoch|batch|iteration|model|begin|end))?[\s_:=#/\-\[(]*\d*[\])]*$"
)

HostRangeKind = Literal["data_loading", "checkpoint", "validation"]


_HOST_BARRIER = re.compile(
    r"(?i)(?:(?:c10d::|(?:gloo|mpi|ucc)::?|(?:torch\.)?(?:distributed|dist)\.(?:distributed_c10d\.)?|P?MPI_)?"
    r"(?:monitored_?)?barrier_?)"
)


def is_host_barrier(text: str) -> bool:
    """Return whether a host's operation that launches nothing waits until all hosts of a group have come to it.

    >>> is_host_barrier("c10d::barrier"), is_host_barrier("gloo:barrier"), is_host_barrier("barrier_cost")
    (True, True, False)
    """
    return _HOST_BARRIER.fullmatch(text) is not None


@lru_cache(maxsize=65536)
def is_unnumbered_step(text: str) -> bool:
    """Return whether a range is a step of a framework that writes no step number."""
    return parse_step_kind(text) is not None or _UNNUMBERED.fullmatch(text) is not None


def host_range_kind(text: str) -> HostRangeKind | None:
    """Return what a host range outside the training itself does; None for any other range.

    `data_loading` waits for the next batch (`enumerate(DataLoader)…` and similar), `checkpoint` writes the model
    (`save_checkpoint iteration 0`; activation checkpointing is none), `validation` evaluates it.
    """
    if _DATA_LOADING.search(text):
        return "data_loading"
    if _CHECKPOINT.search(text):
        return "checkpoint"
    return "validation" if _VALIDATION.search(text) else None


_BATCHES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # vLLM: requests (tokens) of the prefill and of the decode part; newer versions add sums after the tokens
        r"execute_(?:model )?context_(?P<prefills>\d+)\((?P<prefill_tokens>\d+)?[^)]*\)"
        r"[_ ]generation_(?P<decodes>\d+)\((?P<decode_tokens>\d+)?[^)]*\)",
        # older versions of vLLM count new requests and those that ran before
        r"execute_new_(?P<prefills>\d+)_cached_(?P<decodes>\d+)",
        # TensorRT-LLM; it states no tokens of decoding requests, which may be several a request
        r"\[Executor\] _forward_step(?: \d+)?: (?P<prefills>\d+) ctx reqs, (?:(?P<prefill_tokens>\d+) ctx tokens, )?"
        r"(?P<decodes>\d+) gen reqs",
        # SGLang
        r"step\[(?P<mode>[A-Z][A-Z0-9_]{0,31})(?: raw_bs=\d+)? bs=(?P<requests>\d+)(?: toks=(?P<tokens>\d+))?.*\]",
        # ATOM
        r"(?P<mode>prefill|decode)\[bs=(?P<requests>\d+)(?: tok=(?P<tokens>\d+))?.*\]",
    )
)
_KIND_OF_MODE: Final = {
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "PREBUILT": "prefill",
    "TARGET_VERIFY": "verify",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
    "DRAFT_LOOP": "draft",
}
"""Of SGLang's forward modes; another mode is a kind by itself: `DECODE`, `MIXED`, `IDLE`."""

_WORKER_CALLS: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"(?:gpu_model_runner: ?)?execute_model", "serve"),  # vLLM, where it states nothing of the batch
        # verl
        (r"generate_sequences|rollout_generate", "rollout"),
        (r"update_(?:actor|critic|policy|teacher)|(?:actor|critic)_update", "update"),
        (r"(?:(?:actor|ref)_)?compute_(?:ref_)?log_prob|compute_values|compute_rm_score", "score"),
        # NeMo-RL
        (r"\w{0,64}_worker\w{0,64}/generate\w{0,64}", "rollout"),
        (r"\w{0,64}_worker\w{0,64}/train\w{0,64}", "update"),
        (r"\w{0,64}_worker\w{0,64}/get_\w{0,64}logprobs\w{0,64}", "score"),
    )
)
"""Ranges around the calls of a serving engine's or an RL job's workers, and what they are."""
_SIZES: Final = r"(?:[\s_:#=,\-\[(]{1,3}[a-z]{0,12}[=:_ ]?\d{1,18}[\])]?){0,4}"
"""Numbers and what they count: `decode_bs32`, `prefill 3`, `prefill[bs=1, tokens=512]`."""
_PLAIN_KINDS: Final = tuple(
    (re.compile(rf"(?i)(?:{words})(?:[\s_\-]?(?:step|phase|stage|batch))?{numbered}"), kind)
    for words, numbered, kind in (
        ("prefill(?:ing)?", _SIZES, "prefill"),
        ("decod(?:e|ing)", _SIZES, "decode"),
        (
            r"(?:generate[_ ])?rollouts?|generat(?:e|ion)|generate[_ ](?:samples|responses)|make[_ ]experience",
            _SIZES,
            "rollout",
        ),
        (r"(?:compute[_ ])?(?:(?:ref(?:erence)?|actor|old)[_ ])?log_?probs?|(?:compute[_ ])?rewards?", "", "score"),
        (r"(?:(?:actor|critic|policy|model)[_ ])?(?:update|train(?:ing)?)(?:[_ ](?:actor|critic|policy|model))?",
         "", "update"),
    )
)  # fmt: skip
"""Words that a job's own code names its kinds of steps with, and that a part of a training step may be named with."""
INFERENCE: Final = frozenset(("prefill", "decode", "rollout"))
"""Kinds of steps that a training step does not contain."""
_MOST_DIGITS: Final = 9
"""Digits that fit the lake's columns."""


class StepKind(NamedTuple):
    """The kind of a step, and how much it works on; None where the marker does not say."""

    kind: str = TRAIN
    """`train`, `prefill`, `decode`, `mixed` (both in one batch), `serve` (which of them is not stated), `verify`,
    `draft`, `idle`, `rollout`, `update`, …
    """
    requests: int | None = None
    """Requests in the batch."""
    tokens: int | None = None
    """Tokens that the step computes."""


@lru_cache(maxsize=65536)
def parse_step_kind(text: str | None) -> StepKind | None:
    """Return the kind of step that a marker's text names; None if it names none."""
    if text is None:
        return None
    for pattern in _BATCHES:
        if match := pattern.fullmatch(text):
            return _batch_kind(match.groupdict())
    return next((StepKind(kind) for pattern, kind in _WORKER_CALLS if pattern.fullmatch(text)), None)


@lru_cache(maxsize=65536)
def plain_kind(text: str) -> str | None:
    """Return the kind that a word such as `prefill`, `rollout 3` or `update` names; None for another text.

    A range that only such a word names is a step beside ranges of other kinds alone (`select_kinds`).
    """
    return next((kind for pattern, kind in _PLAIN_KINDS if pattern.fullmatch(text)), None)


def step_kind(text: str | None) -> StepKind:
    """Return the kind of a step with this text of its marker; training where it names none."""
    marked = parse_step_kind(text)
    plain = None if text is None or marked is not None or is_unnumbered_step(text) else plain_kind(text)
    return marked or StepKind(plain or TRAIN)


def step_kind_in_turn(text: str) -> StepKind:
    """Return the kind of a step among steps of other kinds: there `update 3` is an update, and alone a training step.

    >>> step_kind_in_turn("update 3").kind, step_kind("update 3").kind
    ('update', 'train')
    """
    kind = step_kind(text)
    return kind if kind != StepKind() else step_kind(_LAST_NUMBER.sub("", text))


_LAST_NUMBER: Final = re.compile(r"[\s_:=#\-]{0,3}\d{1,18}$")


def _batch_kind(words: dict[str, str | None]) -> StepKind:
    counts = {
        name: int(word) for name, word in words.items() if word and word.isdecimal() and len(word) <= _MOST_DIGITS
    }
    if mode := words.get("mode"):
        kind, requests = _KIND_OF_MODE.get(mode, mode.lower()), counts.get("requests")
        # a decoding request computes one token
        return StepKind(kind, requests, counts.get("tokens", requests if kind == "decode" else None))
    prefills, decodes = counts.get("prefills"), counts.get("decodes")
    kind = ("mixed" if decodes != 0 else "prefill") if prefills != 0 else "decode" if decodes != 0 else "idle"
    requests = None if prefills is None or decodes is None else prefills + decodes
    tokens = [
        counts.get(name, 0 if of == 0 else None)
        for name, of in (("prefill_tokens", prefills), ("decode_tokens", decodes))
    ]
    return StepKind(kind, requests, None if None in tokens else sum(count or 0 for count in tokens))


def compile_step_pattern(expression: str | None) -> re.Pattern[str]:
    """Compile a step pattern; raise `UsageError` if it is not a regular expression or has no group `step`."""
    if expression is None:
        return re.compile(DEFAULT_STEP_PATTERN)
    pattern = _compile("--step-pattern", expression)
    if "step" not in pattern.groupindex:
        raise UsageError(
            "--step-pattern has no group named step",
            r"write it like (?P<step>\d+); (?P<epoch>\d+) and (?P<rank>\d+) are optional",
        )
    return pattern


def compile_collective_pattern(expression: str | None) -> re.Pattern[str] | None:
    """Compile the pattern of declared communication kernels; raise `UsageError` if it is no regular expression."""
    if expression is None:
        return None
    pattern = _compile("--collective", expression)
    if pattern.search("") is not None:
        raise UsageError("--collective matches every kernel", f"got {expression!r}; name the kernels that communicate")
    return pattern


def compile_rank_pattern(expression: str) -> re.Pattern[str]:
    """Compile a rank pattern; raise `UsageError` if it is not a regular expression or has no group."""
    pattern = _compile("--rank-pattern", expression)
    if pattern.groups == 0:
        raise UsageError("--rank-pattern has no group", r"write it like node\d+_(?P<rank>\d+)")
    return pattern


def _compile(option: str, expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise UsageError(f"{option} is not a regular expression: {error}", f"got {expression!r}") from None

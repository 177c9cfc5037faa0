"""Classify the text of a host range: a step with its number, a step without one, the wait for data."""

import re
from functools import lru_cache
from typing import Final, Literal

from jitter.ingestion.ranks.rank_names import GLOBAL_RANK
from jitter.ingestion.transform.steps.step_kinds import parse_step_kind

# a hyphen after another separator is a minus sign: ProfilerStep#-1 is no step, step-1 is one
_SEPARATOR = r"[\s_:=#/\-\[(]*(?<![\s:=#/\[(]-)"
_EPOCH = rf"(?:(?<![a-z])epoch{_SEPARATOR}(?P<epoch>\d+)\D*?)?"
_NUMBERED = r"(?:[\s_\-]?(?:num(?:ber)?|idx|index|id)(?![a-z]))?"


def _not_after(*words: str) -> str:
    return "".join(rf"(?<!{word})(?<!{word}[_\- ])" for word in words)


_PART_OF_A_STEP = _not_after("micro", "mini", "sub", "accum", "forward", "backward", "fwd", "bwd")
_DATA_BATCH = _not_after("micro", "mini", "sub", "load", "next", "get", "fetch", "put")
_COUNTER = (
    r"(?:(?<![a-z])(?:profilerstep|(?:train(?:ing)?|global)?[\s_\-]?"
    rf"{_PART_OF_A_STEP}(?:step|iteration|iter){_NUMBERED}){_SEPARATOR}"
    r"|(?<![a-z])_forward_step\s+"  # TensorRT-LLM's executor
    rf"|(?<![a-z]){_DATA_BATCH}batch(?:[\s_#]+|[\s_\-]?(?:idx|index|id|num(?:ber)?)(?![a-z]){_SEPARATOR})"
    r"|(?<![a-z])(?<![a-z][\s_.\-])(?:it|update)[\s_:=#]+)"
)
_STEP = r"(?P<step>\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?![\d.])"
_RANK = rf"(?:.*?{GLOBAL_RANK}{_SEPARATOR}(?P<rank>\d+))?"

DEFAULT_STEP_PATTERN: Final = rf"(?i){_EPOCH}{_COUNTER}{_STEP}{_RANK}"
"""`epoch1_step2003-rank0-…`, `ProfilerStep#12`, `step 12`, `train#step_num=12#`, `iteration: 12`, `batch_idx=12`."""

_BESIDE_TRAINING = re.compile(
    r"(?i)(?<![a-z])(?:save|checkpoint\w*|ckpt|valid(?:ation|ate|ating)?|val|eval(?:uation|uate|uating)?|test(?:ing)?"
    r"|sanity)(?![a-z])"
)
_UNNUMBERED = re.compile(
    r"(?:gpu_model_runner: ?)?execute_model"
    r"|\[pl\]\[profile\]run_training_batch|run_training_batch"  # Lightning
    r"|(?:DeepSpeed|Pipeline)Engine\.train_batch"
    r"|(?i:train(?:ing)?[ _-](?:step|iteration|batch))"
)
_DATA_LOADING = re.compile(
    r"(?i)enumerate\(dataloader\)|data[ _\-]?load|load[ _\-]?(?:data|batch)|next[ _\-]?batch|get[ _\-]?batch"
    r"|batch[ _\-]?generator|input[ _\-]?pipeline|data[ _\-]?(?:wait|fetch|iter|time)|fetch[ _\-]?(?:data|batch)"
)


_CHECKPOINT = re.compile(
    r"(?i)(?<![a-z])(?:save|saving|write|writing|dump|store)[ _.\-]*(?:\w{0,64}[ _.\-])?"
    r"(?:checkpoint|ckpt|state_?dict|model|weights)s?(?![a-z])"
    r"|(?<![a-z])(?:checkpoint|ckpt)s?[ _\-]*(?:saving|save|writing|write)(?![a-z])"
)
_VALIDATION = re.compile(
    r"(?i)(?<![a-z])(?:run[ _\-]?)?(?:validat(?:ion|e|ing)|evaluat(?:ion|e|ing)|eval)"
    r"(?:[ _\-]*(?:step|loop|epoch|batch|iteration|model|begin|end))?[\s_:=#/\-\[(]*\d*[\])]*$"
)

HostRangeKind = Literal["data_loading", "checkpoint", "validation"]


def may_name_step(text: str) -> bool:
    """Return whether a text can match `DEFAULT_STEP_PATTERN`: several times faster than the pattern, which few do."""
    words = text.lower()
    return "step" in words or "iter" in words or "batch" in words or "update" in words or "it" in words


def is_beside_training(text: str) -> bool:
    """Return whether the text names a checkpoint, a validation or a test, whose numbers are not training steps."""
    return _BESIDE_TRAINING.search(text) is not None


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

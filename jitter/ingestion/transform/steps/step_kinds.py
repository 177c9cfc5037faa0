"""Kinds of steps: what the marker of a serving engine or of an RL job says that the step does."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from jitter.lake.records import TRAIN

_BATCHES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # vLLM: requests (tokens) of the prefill and of the decode part; newer versions add sums after the tokens
        r"execute_context_(?P<prefills>\d+)\((?P<prefill_tokens>\d+)[^)]*\)"
        r"_generation_(?P<decodes>\d+)\((?P<decode_tokens>\d+)[^)]*\)",
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

_CALLS: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        # verl
        (r"generate_sequences", "rollout"),
        (r"update_(?:actor|critic|policy)", "update"),
        (r"compute_(?:ref_)?log_prob|compute_values|compute_rm_score", "score"),
        # NeMo-RL
        (r"\w{0,64}_worker\w{0,64}/generate\w{0,64}", "rollout"),
        (r"\w{0,64}_worker\w{0,64}/train\w{0,64}", "update"),
        (r"\w{0,64}_worker\w{0,64}/get_\w{0,64}logprobs\w{0,64}", "score"),
    )
)
"""Ranges around the calls of an RL job's workers, and what they are."""
_MOST_DIGITS: Final = 9
"""Digits that fit the lake's columns."""


class StepKind(NamedTuple):
    """The kind of a step, and how much it works on; None where the marker does not say."""

    kind: str = TRAIN
    """`train`, `prefill`, `decode`, `mixed` (both in one batch), `verify`, `draft`, `idle`, `rollout`, `update`, …"""
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
    return next((StepKind(kind) for pattern, kind in _CALLS if pattern.fullmatch(text)), None)


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

"""The verdict in sentences: what jitter costs, which rank, host or link causes it, whether it recurs, what to check."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitter.analysis.account.losses import LossClass
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.hang.model import write_hang_verdict
from jitter.analysis.diagnosis.limitations import NO_COMMON_STEP, ONE_STEP, explain_unrecorded
from jitter.analysis.diagnosis.loss.split import describe_split, main_rank, sum_by_rank
from jitter.analysis.diagnosis.model import ADD_RANKS, SAVES_MORE, Culprit, Loss, find_hidden_with
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    capitalize,
    format_count,
    format_numbers,
    format_percent,
    format_ranks,
    format_time,
    format_time_range,
)

if TYPE_CHECKING:
    from jitter.analysis.diagnosis.diagnosis import Diagnosis

_PLACES: Final = {"CPU": "host", "GPU": "GPU", "network": "link", "workload_imbalance": "share of the work"}
"""What recurs on one rank, by cause or by side."""


def describe_seen(culprit: Culprit) -> str:
    """Return in how many steps the culprit was seen, and in which: `1 of 5 steps: epoch 1, step 2003`."""
    seen = culprit.seen
    if seen.of == 1:
        return "the only step"
    before = ""
    if culprit.is_before_steps:
        is_one = len(culprit.steps) == 1
        before = f", at the end of step {culprit.steps[0].step - 1}" if is_one else ", at the ends of the steps before"
    return f"{seen.steps:,} of {format_count(seen.of, 'step')}{culprit.step_pattern.beside_count}{before}"


def describe_recurrence(culprit: Culprit) -> str:
    """Return whether the culprit recurs, and if that is unknown what would tell, as a clause."""
    if culprit.recurs == "yes":
        return "it ended within the recorded steps" if culprit.step_pattern.has_ended else "it recurs"
    if culprit.recurs == "no":
        return "any rank could be next"
    if culprit.recurs == "together":
        is_of_all = culprit.rung == "steps" or CAUSES[culprit.cause].side == "network"
        others = "the steps get longer and longer" if culprit.step_pattern.grows else "the other steps are not slow"
        return others if is_of_all else "several ranks are late in the same steps"
    if culprit.scope == "unrecorded":
        return "whether it recurs is unknown"
    if culprit.more_steps is None:
        is_lasting = 2 * culprit.seen.steps > culprit.seen.of
        unknown = "whether ranks always differ as much" if is_lasting else "whether it recurs"
        return f"{unknown} is unknown: compare with a good run (jitter compare GOOD NEW)"
    if culprit.seen.of + culprit.more_steps <= THRESHOLDS.min_steps:
        steps = f"at least {THRESHOLDS.min_steps} consecutive steps"
    else:
        steps = format_count(culprit.more_steps, "more step")
    return f"whether it recurs is unknown: record {steps}"


def advise_recurrence(culprit: Culprit) -> str:
    """Return whether the culprit recurs, and what the steps to record would tell of a rank, as a sentence."""
    recurrence, side = describe_recurrence(culprit), CAUSES[culprit.cause].side
    if culprit.more_steps is not None and culprit.scope == "rank" and side is not None:
        place = _PLACES.get(culprit.cause, _PLACES[side])
        recurrence += f"; rank {culprit.rank} again points to its {place}, other ranks to random events"
    return capitalize(recurrence)


def write_verdict(diagnosis: "Diagnosis") -> str:
    """Return the verdict: the hang, what logs measured, what jitter costs, and a headline about all ranks alike."""
    hang, first = diagnosis.hang, diagnosis.headline
    if hang is not None and not diagnosis.steps:
        return write_hang_verdict(hang)
    parts = [] if hang is None else [write_hang_verdict(hang)]
    parts += [*diagnosis.measurements, write_jitter_verdict(diagnosis)]
    if first is not None and first.is_of_program:
        parts.append(describe_program(first))
    return " ".join(parts)


def write_jitter_verdict(diagnosis: "Diagnosis") -> str:
    """Return what jitter costs, which rank, host or link causes it, and what limits that statement."""
    conclusion, doubt = diagnosis.conclusion, diagnosis.communication_doubt
    if not diagnosis.steps:
        return "The lake holds logs and no traces, so jitter is unknown: ingest the job's traces too."
    if diagnosis.ranks == 0:
        return "No rank recorded a step completely, so jitter cannot be measured."
    if NO_COMMON_STEP in conclusion.doubts and not diagnosis.culprits:
        return NO_COMMON_STEP
    cost = _describe_own_cost(diagnosis.loss) if diagnosis.ranks == 1 else _describe_cost(diagnosis)
    # what a loss is due to may recur, or not
    alone = [ONE_STEP] if len(diagnosis.steps) == 1 and conclusion.status in ("found", "spread") else []
    if diagnosis.culprits:
        sentences = [f"{cost}. {_describe_culprits(diagnosis)}.", *_describe_unrecorded(diagnosis), *alone]
        sentences += [*_describe_doubt(diagnosis), *_describe_logs(_headline_first(diagnosis)[0])]
    elif doubt is not None:
        return f"{cost}; no rank can be blamed or cleared: {doubt}."
    elif diagnosis.ranks == 1:
        missing = conclusion.unrecorded
        sentences = [f"{cost}.", *([explain_unrecorded(missing)] if missing and missing.fraction is not None else [])]
    else:
        sentences = [f"{cost}; {_describe_no_finding(diagnosis)}.", *conclusion.doubts, *alone]
    return " ".join([*sentences, *filter(None, [diagnosis.warm_up])])


def _describe_unrecorded(diagnosis: "Diagnosis") -> Iterator[str]:
    """Yield what ranks without a recording may cost beside the culprits, where that is much and no culprit says it."""
    missing = diagnosis.conclusion.unrecorded
    is_named = any(culprit.scope == "unrecorded" for culprit in diagnosis.culprits)
    if missing and not is_named and (missing.fraction or 0.0) >= THRESHOLDS.min_clear_share:
        yield explain_unrecorded(missing)


def _describe_doubt(diagnosis: "Diagnosis") -> Iterator[str]:
    """Yield what makes the communication, and so the culprits, doubtful."""
    if diagnosis.communication_doubt is not None:
        is_low = any(culprit.confidence == "low" for culprit in diagnosis.culprits)
        yield f"{'Confidence is low' if is_low else 'Note'}: {diagnosis.communication_doubt}."


def _describe_logs(first: Culprit) -> Iterator[str]:
    """Yield what logs state of the first culprit."""
    if first.facts:
        words = list(dict.fromkeys(fact.words for fact in first.facts))
        yield f"By the logs, {'; '.join(words[: THRESHOLDS.sentences.max_named - 1])}."


def _headline_first(diagnosis: "Diagnosis") -> tuple[Culprit, ...]:
    """Return the culprits, first the one that heads the report: one of low confidence may cost more."""
    first, culprits = diagnosis.headline, diagnosis.culprits
    return culprits if first not in culprits else (first, *(culprit for culprit in culprits if culprit is not first))


def _describe_culprits(diagnosis: "Diagnosis") -> str:
    culprits = _headline_first(diagnosis)
    first = culprits[0]
    # where communication is in doubt, a sentence of its own says it of all
    lead = ", low confidence" if first.confidence == "low" and diagnosis.communication_doubt is None else ""
    recurs = describe_recurrence(first)
    again = f", {recurs}" if first.recurs == "yes" else ""
    hidden = _hidden_with_first(diagnosis)
    alike = hidden if all(culprit.cause == first.cause for culprit in hidden) else []
    said = f"{name_culprit(first)} {describe_advice(first)} (seen in {describe_seen(first)}{again}{lead})"
    if alike:
        said += (
            f", and so {'does' if len(alike) == 1 else 'do'} {_list_names(alike)}; fixing "
            f"{'both' if len(alike) == 1 else 'all of them'} would save {_saved_together(diagnosis, alike)}, "
            f"{_name_within(first)} alone {_saved(first)}"
        )
    else:
        said += f"; {describe_gain(first)}"
    if not again and len(diagnosis.steps) > 1:
        said += f". {recurs[:1].upper()}{recurs[1:]}"
    others = [culprit for culprit in culprits[1:] if culprit not in alike]
    if others:
        said += f". Also {_list_names(others, with_cause=True)}"
        said += f"; {gain}" if (gain := describe_gain_of_all(diagnosis)) else ""
    return said


def describe_gain_with_hidden(culprit: Culprit, diagnosis: "Diagnosis") -> str:
    """Return what fixing the first culprit and all that hide it saves, as a clause; empty if none hides it."""
    hidden = _hidden_with_first(diagnosis) if culprit in _headline_first(diagnosis)[:1] else []
    return f"with {_list_names(hidden)} {_saved_together(diagnosis, hidden)}" if hidden else ""


def _hidden_with_first(diagnosis: "Diagnosis") -> list[Culprit]:
    """Return what hides the culprit that heads the report; none if fixing all of it saves hardly more than one."""
    first, *others = _headline_first(diagnosis)
    least_ns = (1 + THRESHOLDS.tolerance_share) * first.gain_ns
    is_more = first.gain_with_hidden_ns is None or first.gain_with_hidden_ns > least_ns
    return find_hidden_with(first, others) if is_more else []


def _saved_together(diagnosis: "Diagnosis", hidden: Sequence[Culprit]) -> str:
    """Return what fixing the first culprit and those `hidden` saves."""
    first = _headline_first(diagnosis)[0]
    lost_ns = sum(culprit.loss_ns for culprit in (first, *hidden))
    known_ns = first.gain_with_hidden_ns
    return f"about {format_time(min(lost_ns, diagnosis.gain_of_all_ns) if known_ns is None else known_ns)}"


def _list_names(culprits: Sequence[Culprit], *, with_cause: bool = False) -> str:
    """Return the names of culprits within a sentence, the costliest first."""
    names = [_name_within(culprit) for culprit in culprits[: THRESHOLDS.sentences.max_named - 1]]
    if with_cause:
        names = [
            f"{name} ({CAUSES[culprit.cause].words})".replace(") (", ", ")
            for name, culprit in zip(names, culprits, strict=False)
        ]
    unnamed = len(culprits) - len(names)
    return f"{', '.join(names)} and {unnamed} more" if unnamed else " and ".join(names)


def _name_within(culprit: Culprit) -> str:
    """Return the culprit's name within a sentence."""
    return f"{name_culprit(culprit)[:1].lower()}{name_culprit(culprit)[1:]}"


def name_cause(culprit: Culprit) -> str:
    """Return the cause in words: as the logs state it, where they make it certain."""
    stated = (fact.reason for fact in culprit.facts if fact.certainty == "certain" and fact.reason)
    words = CAUSES[culprit.cause].words
    if culprit.cause == "cpu_launch" and culprit.loss_class == LossClass.START.label:  # a host that is slow throughout
        words = f"{CAUSES['late_start'].words} and kernel launches"
    return next(stated, words + (f", or {culprit.waits.what}" if culprit.waits else ""))


def name_side(words: str, side: str | None) -> str:
    """Return a cause in words with the side that it is on, unless the words name it: `late kernel launches (CPU)`."""
    return words if side is None or side in words else f"{words} ({side})"


def describe_advice(culprit: Culprit) -> str:
    """Return what the culprit does and where to look, as the end of a sentence that begins with the culprit.

    Where the logs make a cause certain, what to do is what they advise; where likely, it comes first. It does not
    begin with what the logs rule out.
    """
    behaviour, colon, action = _advise(culprit).rpartition(": ")
    action = next((fact.advice for fact in culprit.facts if fact.excludes), action)
    for certainty, otherwise in (("certain", ""), ("likely", f"; if that is not it, {action}")):
        stated = [fact.advice for fact in culprit.facts if fact.certainty == certainty and fact.advice]
        if stated:
            return f"{behaviour}{colon}{stated[0]}{otherwise}"
    return f"{behaviour}{colon}{action}"


def _advise(culprit: Culprit) -> str:
    if culprit.scope == "unrecorded":
        return culprit.advice or f"holds up the recorded ranks: {ADD_RANKS}, and check the network"
    usual = CAUSES[culprit.cause].advise(is_job=culprit.scope == "job" and len(culprit.ranks) > 1)
    if culprit.waits:
        return f"{usual.partition(':')[0]}: {culprit.waits.advice}"
    return culprit.advice or usual


def write_advice(culprit: Culprit) -> str:
    """Return what to check, and what to record to know whether the culprit recurs, as sentences.

    What the program costs is in every step.
    """
    recurrence = "" if culprit.is_of_program else f" {advise_recurrence(culprit)}"
    return capitalize(f"{name_culprit(culprit)} {describe_advice(culprit)}") + recurrence


def _describe_no_finding(diagnosis: "Diagnosis") -> str:
    conclusion = diagnosis.conclusion
    if conclusion.status == "spread":
        parts = describe_split(diagnosis.split)
        where = f": {parts}" if parts else ""
        if (rank := main_rank(diagnosis.split)) is None:
            return f"the loss is spread over the ranks, and none stands out above the run's noise{where}"
        return f"most of the loss is on rank {rank}, which does not stand out above the run's noise{where}"
    if conclusion.status == "unknown":
        return "no rank can be blamed or cleared"
    subject = "recorded rank" if conclusion.doubts else "rank, host or link"
    hint = _slowest(diagnosis)
    clause = f"no {subject} stands out above the run's noise{hint}"
    if conclusion.unverified_transfers is None:
        return clause
    return (
        f"{clause}; a network that is slow for all ranks in every step is not excluded, nor one link that all wait for "
        f"(communication on the critical path takes {format_percent(conclusion.unverified_transfers)} of the steps)"
    )


def _describe_own_cost(loss: Loss) -> str:
    alone = "Only one rank was recorded, so jitter between ranks cannot be measured"
    if loss.ns is None or loss.ns <= 0:
        return alone
    share = "" if loss.fraction is None else f" ({format_percent(loss.fraction)})"
    return f"{alone}; its own steps lose {format_time(loss.ns)}{share} against their median"


def _describe_cost(diagnosis: "Diagnosis") -> str:
    loss = diagnosis.loss
    if loss.ns is None:
        return "The cost of jitter is unknown"
    counted = format_count(diagnosis.counted_steps, "step")
    between = "" if diagnosis.conclusion.unrecorded is None else " between the recorded ranks"
    if loss.ns <= 0:
        return f"Jitter{between} costs no measurable time over {counted}"
    share = "" if loss.fraction is None else f" ({format_percent(loss.fraction)})"
    return f"Jitter{between} costs {format_time(loss.ns)} over {counted}{share}"


def describe_gain(culprit: Culprit) -> str:
    """Return what fixing the culprit would save, and its share of jitter's loss where that is more, as a clause."""
    saving = describe_saving(culprit)
    if culprit.is_hidden:
        return f"{saving}; it accounts for {format_time(culprit.loss_ns)} of the loss"
    return f"it costs {describe_price(culprit)}" if culprit.is_beyond_loss else saving


def describe_gain_of_all(diagnosis: "Diagnosis") -> str:
    """Return what fixing all findings of jitter would save, as a clause; empty where one has no price."""
    if any(culprit.unpriced_because for culprit in diagnosis.culprits):
        return ""
    findings = "findings but those of the program" if diagnosis.of_all_ranks else "findings"
    if (saved_ns := diagnosis.gain_of_all_ns) > 0:
        return f"fixing all {findings} would save about {format_time(saved_ns)}"
    return f"fixing all {findings} would save too little to measure, because other work is as late or later"


def describe_program(culprit: Culprit) -> str:
    """Return what all ranks lose alike to the program, and what to do, as a sentence."""
    return f"{name_culprit(culprit)} {describe_advice(culprit)}; {describe_gain(culprit)}."


def describe_loss(culprit: Culprit, of_run: str = " of the run") -> str:
    """Return the culprit's share of its rung's loss: `1.16 ms = 11.1% of the run`."""
    if culprit.is_of_unknown_cost:
        return "an unknown time"
    part = "" if culprit.fraction is None else f" = {format_percent(culprit.fraction)}{of_run}"
    return f"{format_time(culprit.loss_ns)}{part}"


def describe_price(culprit: Culprit) -> str:
    """Return the culprit's loss, and what fixing it alone saves where that differs."""
    saving = describe_saving(culprit)
    if _saves_its_loss(culprit):
        saving = "fixing it alone would save at most that" if _is_bound(culprit) else ""
    return "; ".join(filter(None, (describe_loss(culprit), saving)))


def describe_saving_beside(culprit: Culprit, diagnosis: "Diagnosis") -> str:
    """Return what fixing a finding below the headline saves, in few words; empty where that is its loss, or unknown.

    And where the headline says what fixing both saves.
    """
    saving = name_saving(culprit)
    if not saving or (culprit.is_hidden and culprit in _hidden_with_first(diagnosis)):
        return ""
    alone, hidden = (" alone", ", as others are as late or later") if culprit.is_hidden else ("", "")
    return f"its fix{alone} {saving}{hidden}"


def name_saving(culprit: Culprit) -> str:
    """Return what fixing the culprit alone saves: `saves about 620 µs`; empty where that is its loss, or unknown."""
    return "" if culprit.unpriced_because or _saves_its_loss(culprit) else f"saves {_saved(culprit)}"


def _saves_its_loss(culprit: Culprit) -> bool:
    """Return whether fixing the culprit alone saves its loss, within 5%."""
    is_plain = culprit.gain_range_ns is None and not culprit.unpriced_because and culprit.gain_ns > 0
    return is_plain and abs(culprit.gain_ns - culprit.loss_ns) <= (1 - THRESHOLDS.whole_share) * culprit.loss_ns


def describe_saving(culprit: Culprit, fix: str = "fixing it") -> str:
    """Return what a fix of the culprit would save, as a clause."""
    saved = _saved(culprit)
    if culprit.unpriced_because:
        return f"what {fix} would save is unknown, because {culprit.unpriced_because}"
    if culprit.is_hidden or culprit.are_others_as_late:
        only = "only " if saved.startswith("about") and not culprit.is_hidden else ""
        return f"{fix} alone would save {only}{saved}, because others are as late or later"
    if culprit.is_of_program:
        more = SAVES_MORE if culprit.gain_ns > culprit.loss_ns else ""
        return f"{fix} alone would save {saved}{more}"
    if saved == "nothing":
        return f"what {fix} alone would save is too small to measure in these steps"
    return f"{fix} would save {saved}"


def _saved(culprit: Culprit) -> str:
    """Return the time that fixing the culprit alone would save: `about 1.16 ms`, `2.18 ms to 4.90 ms`, `nothing`."""
    if culprit.gain_range_ns is not None:
        return format_time_range(culprit.gain_range_ns)
    if culprit.gain_ns <= 0:
        return "nothing"
    return f"{'at most' if _is_bound(culprit) else 'about'} {format_time(culprit.gain_ns)}"


def _is_bound(culprit: Culprit) -> bool:
    """Return whether fixing the culprit saves its gain at most: no network takes no time."""
    return culprit.cause == "exposed_communication"


def _slowest(diagnosis: "Diagnosis") -> str:
    """Name the rank with the largest share of most steps' loss, where the loss is not small: a hint, and its cost."""
    loss, steps = diagnosis.loss, diagnosis.steps
    counts = Counter(step.max_rank for step in steps if step.max_rank is not None)
    if not counts or (loss.fraction or 0.0) < THRESHOLDS.min_cost_share:
        return ""
    rank, times = counts.most_common(1)[0]
    if times * 2 <= len(steps) or len(steps) == 1:
        return ""
    lost_ns, small = sum_by_rank(diagnosis.split)[rank], ""
    if loss.ns and loss.fraction and 0 < (fraction := loss.fraction * lost_ns / loss.ns) < THRESHOLDS.min_cost_share:
        small = (
            f": {format_time(lost_ns)} ({format_percent(fraction)}), and what costs less than "
            f"{THRESHOLDS.min_cost_share:.0%} is no finding"
        )
    return f", although rank {rank} is the slowest in {times} of {len(steps)} steps{small}"


def _name_ranks_of_job(culprit: Culprit) -> str:
    if not culprit.is_part_of_job and len(culprit.ranks) > 1:
        return "All recorded ranks" if culprit.lacks_ranks else "All ranks"
    ranks = format_ranks(culprit.ranks)
    is_long = ranks.count(",") > THRESHOLDS.sentences.max_named
    return format_count(len(culprit.ranks), "rank") if is_long else ranks.capitalize()


def name_culprit(culprit: Culprit) -> str:
    """Return the culprit's name, as the beginning of a sentence."""
    if culprit.scope == "host":
        ranks = f"ranks {format_numbers(culprit.ranks)}"
        return f"The node of {ranks}" if culprit.host is None else f"Host {culprit.host} ({ranks})"
    if culprit.scope == "device":
        return f"Device {culprit.device} of every host (ranks {format_numbers(culprit.ranks)})"
    if culprit.scope == "job":
        return _name_ranks_of_job(culprit)
    if culprit.scope == "unrecorded":
        return "An unrecorded rank or the network"
    is_group = culprit.scope == "ranks"
    name = f"The group of ranks {format_numbers(culprit.ranks)}" if is_group else f"Rank {culprit.rank}"
    return name + ("" if culprit.host is None else f" ({culprit.host})")

"""Regular expressions that a user gives: for step markers, for names of collectives, for ranks in paths."""

import re

from jitter.core.errors import UsageError
from jitter.ingestion.transform.steps.step_names import DEFAULT_STEP_PATTERN


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

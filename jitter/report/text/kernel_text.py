"""The kernels of a finding as text: its range of kernel indices, and the kernel at which its excess begins."""

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import Culprit
from jitter.core.formatting import abbreviate
from jitter.core.names.kernels import short_name


def describe_kernels(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return `kernels 2 to 73, starting at reduce_kernel`; empty for a finding without a range.

    The name is that of the first divergence, in its steps and on its ranks, that lies in the range.
    """
    index = culprit.kernel_index
    if index is None:
        return ""
    cause = CAUSES[culprit.cause]
    if not cause.is_at_kernels:
        return cause.place
    where = f"kernel {index.first}" if index.first == index.last else f"kernels {index.first} to {index.last}"
    for step in diagnosis.steps:
        began = step.divergence
        if began is None or step.max_rank not in culprit.ranks or step.key not in culprit.steps:
            continue
        if index.first <= began.kernel_index <= index.last:
            return f"{where}, starting at {abbreviate(short_name(began.kernel_name))}"
    return where

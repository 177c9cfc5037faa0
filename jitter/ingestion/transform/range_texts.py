"""What the text of a range says: an operator, a frame of the stack, a part of a scope, a phase of the step."""

import re
from functools import lru_cache
from typing import Final

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
COMMUNICATION: Final = "communication"

SEPARATOR: Final = "/"
"""Between the parts of a scope."""
_LONGEST: Final = 256
"""Characters of one part of a scope; longer texts are cut."""
DETAILS: Final = r"(?s), (?:seq|op_id|sizes|input_op_ids) = .*"
"""Details that torch.autograd.profiler.emit_nvtx adds to names: "aten::add, seq = 5, op_id = 12, sizes = [...]"."""
_DETAILS: Final = re.compile(DETAILS)
_OPERATOR: Final = re.compile(
    r"[\w.$]+(?:::[\w.$]+)+(?:: ?\w+)?|\w+Backward\d*|autograd::engine::evaluate_function: ?\S+|record_param_comms"
    r"|p?(?:nccl|rccl)[A-Z]\w*|nvshmemx?_\w+|MPI_\w+"
)
_BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
_WORD: Final = re.compile(
    r"(?i)(?<![a-z])(?:(?P<forward>forward|fwd|fprop|(?<=strategy\.)training_step)|(?P<backward>backward|bwd|bprop|wgrad|dgrad)"
    r"|(?P<optimizer>optimi[sz]er|optim(?=[\W_]*step)|zero_grad|(?<=engine\.)step$))"
)
_METHOD: Final = re.compile(r"\w+\.(?P<method>\w+)")
_PATH: Final = re.compile(r"\w+(?:\.\w+)+")
"""A function by the names of what holds it, as Megatron and TransformerEngine name ranges."""
_OF_GRADIENTS: Final = re.compile(r"(?:reduce|scatter|partition)\w*grad|grad\w*(?:partition|bucket)")
"""Methods of DeepSpeed's optimizers that hooks of the backward pass call."""
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MODULE: Final = "nn.Module: "
_FRAME: Final = re.compile(r".+\.py\(\d+\): ")
_NATIVE_FRAME: Final = re.compile(r"[^\s!/]+!\S")


@lru_cache(maxsize=65536)
def parse_operator(text: str) -> str | None:
    """Return the operator that a range's text names, without sequence number and sizes; None for an annotation.

    >>> parse_operator("aten::add, seq = 5, sizes = [[2]]"), parse_operator("layer 3")
    ('aten::add', None)
    """
    name = _DETAILS.sub("", text)
    return name if _OPERATOR.fullmatch(name) else None


def is_frame(text: str) -> bool:
    """Return whether a text is a frame of a stack: file, line and function of Python, or `module!function`.

    >>> is_frame("model/layers.py(120): forward"), is_frame("train!step(int)"), is_frame("nn.Module: Linear_1")
    (True, True, False)
    """
    return _FRAME.match(text) is not None or is_native_frame(text)


def is_native_frame(text: str) -> bool:
    """Return whether a text is a function of a program and its module: `module!function`."""
    return _NATIVE_FRAME.match(text) is not None


def scope_part(text: str) -> str:
    """Return the text of an annotation or a module as one part of a scope."""
    part = text.removeprefix(_MODULE).strip().strip("#").strip() or text
    return part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…"


@lru_cache(maxsize=65536)
def parse_phase(text: str) -> str | None:
    """Return the phase of the step that the text of an operator or an annotation states; None if it states none or two.

    >>> parse_phase("## backward ##"), parse_phase("Optimizer.step#Adam.step"), parse_phase("forward_backward")
    ('backward', 'optimizer', None)
    """
    if _BACKWARD.search(text):
        return BACKWARD
    method = _METHOD.fullmatch(text)
    if method is not None and _OF_GRADIENTS.search(method["method"]):
        return BACKWARD
    words = _CAMEL.sub("_", text)
    matches = list(_WORD.finditer(words))
    if matches and _PATH.fullmatch(text):
        # a method says more than its class: `DeepSpeedZeroOptimizer.backward`
        part = words.rfind(".", 0, matches[-1].start())
        matches = [match for match in matches if match.start() > part]
    phases = {match.lastgroup for match in matches}
    return phases.pop() if len(phases) == 1 else None

"""Thresholds stand in one place: no other module of the analysis defines a number that decides."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitter.analysis
from jitter.analysis.thresholds import THRESHOLDS

ANALYSIS = Path(jitter.analysis.__file__).parent
NOT_THRESHOLDS = {
    # codes
    "alignment/kernel_index.py": {"UNMATCHED"},
    "metrics/collective_calls.py": {"UNKNOWN", "_ROWS_AT_ONCE"},
    "alignment/program.py": {"MAIN", "NO_STREAM", "_MOST_PROGRESS"},
    "alignment/sequences.py": {"_MOST_PAIRS"},
    "collectives/leaving_together.py": {"ALONE"},
    "execution/dependencies.py": {"_NONE"},
    # definitions: a rank of a ring and both neighbours
    "collectives/rings.py": {"_NEIGHBOURHOOD"},
    # mathematics: constants of distributions, first guesses and ends of iterations, rounding
    "detection/significance.py": {"_QUARTILE", "_PRECISION", "_MAD_EFFICIENCY"},
    "diagnosis/finding_groups.py": {"_ROUNDING"},
    "execution/host_waits.py": {"_SCALES"},
    "execution/interference.py": {"_FIRST_GUESS", "_ITERATIONS"},
    "account/usual_step.py": {"_STEPS"},
    # memory, threads and caches: they decide how fast an answer comes, never which one
    "account/losses.py": {"_ROWS_AT_ONCE"},
    "execution/self_times.py": {"OPERATIONS_AT_ONCE"},
    "execution/run_reader.py": {"_ROWS_AT_ONCE", "_ROWS_KEPT", "_ROWS_TOGETHER"},
    "execution/run_model.py": {"_SMALL_STEP", "_MOST_AHEAD"},
    "replay/run_steps.py": {"_CELLS_AT_ONCE"},
    "metrics/communication.py": {"_ROWS_AT_ONCE"},
    "detection/run_transfers.py": {"_GROUPS_AT_ONCE"},
    "detection/dask_executor.py": {"_RANGES_PER_WORKER"},
    "diagnosis/answer_cache.py": {"MIN_ACTIVITIES", "STEP_ACTIVITIES"},
    "diagnosis/evidence/host_operations.py": {"_MOST_KEPT"},
    "diagnosis/diagnosis.py": {"_REPR_LENGTH"},
    "diagnosis/hang/find_hang.py": {"_BEFORE_ALL", "MAX_MEMBERS", "_MOST_CALLS", "_MOST_LAST_CALLS"},
}


def numbers(source: str) -> Iterator[str]:
    """Yield the names of a module's constants whose value is made of numbers alone."""
    for node in ast.parse(source).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is None or not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        parts = list(ast.walk(value))
        allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Tuple, ast.expr_context)
        literals = [part.value for part in parts if isinstance(part, ast.Constant)]
        if (
            all(isinstance(part, allowed) for part in parts)
            and literals
            and all(type(x) in (int, float) for x in literals)
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def modules() -> list[str]:
    every = sorted(path.relative_to(ANALYSIS).as_posix() for path in ANALYSIS.rglob("*.py"))
    return [name for name in every if name != "thresholds.py"]


@pytest.mark.parametrize("module", modules())
def test_no_threshold_lies_elsewhere(module: str):
    found = set(numbers((ANALYSIS / module).read_text()))
    stray = found - NOT_THRESHOLDS.get(module, set())
    assert not stray, (
        f"jitter/analysis/{module} defines {', '.join(sorted(stray))}: a number that decides belongs into "
        "jitter/analysis/thresholds.py with its unit and reason; any other number into NOT_THRESHOLDS of this test"
    )
    assert found >= NOT_THRESHOLDS.get(module, set()), "NOT_THRESHOLDS names constants that are gone"


def test_the_exceptions_name_modules_that_exist():
    assert NOT_THRESHOLDS.keys() <= set(modules())


def test_numbers_are_found_in_every_form():
    source = (
        "A = 1\n_B: Final = -2.5\nC, D = 1, 2\nE = 64 << 20\nF = 'x'\nG = (1, 2)\nH = f(1)\nI = THRESHOLDS.x\nJ: int\n"
    )
    assert list(numbers(source)) == ["A", "_B", "C", "D", "E", "G"]


def groups() -> list[type]:
    nested = [type(value) for value in THRESHOLDS if hasattr(value, "_fields")]
    return [type(THRESHOLDS), *nested]


@pytest.mark.parametrize("group", groups())
def test_each_threshold_has_unit_and_reason(group: type):
    """A string follows each number: its first sentence has the unit, the rest the reason."""
    body = ast.parse(inspect.getsource(group)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            assert str(said).endswith("."), f"{group.__name__}.{ast.unparse(node.target)} has no unit and reason"

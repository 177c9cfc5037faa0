"""Compile loops over arrays with numba; run the same functions uncompiled where that is not worth it.

A function decorated with `compiled` is plain Python over arrays, floats and integers, with NaN for the unknown. Loading
numba takes half a second, and compiling for the first time some seconds, so small inputs run the functions as they
stand. They then get memoryviews instead of arrays: their elements are Python's own numbers, which are faster.
"""

import logging
from collections.abc import Callable
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from types import CodeType, FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

WORTH_COMPILING: Final = 20_000
"""Cells (operations × ranks × steps) from which on loading numba costs less than uncompiled loops."""

_log = logging.getLogger(__name__)
_numba: Any = None
_lock: Final = Lock()


def compile_loops(cells: int) -> None:
    """Have this process run its loops compiled from now on if so many cells are worth it and numba is there.

    Logs a warning, once, where numba is missing.
    """
    global _numba  # noqa: PLW0603  # once for the process: a loaded numba stays
    if _numba is not None or cells < WORTH_COMPILING:
        return
    with _lock:
        try:
            import numba

            _numba = numba
        except ImportError as error:
            _numba = False
            _log.warning("numba cannot be loaded (%s): the analysis runs uncompiled, about 100 times slower", error)


class CompiledFunction(Generic[P, R]):
    """A function that runs compiled or as it stands, as `compile_loops` says."""

    def __init__(self, function: Callable[P, R]) -> None:
        assert isinstance(function, FunctionType)
        self.function = function
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _numba:
            return self.fast(*args, **kwargs)
        return self.plain(*map(_memory, args), **kwargs)

    @cached_property
    def plain(self) -> Callable[..., R]:
        """The function uncompiled, and uncompiled all that it calls."""
        return self._bound("plain", self.function.__qualname__)

    @cached_property
    def fast(self) -> Callable[..., R]:
        """The function compiled, to be called from Python."""
        return self._compile()

    @cached_property
    def inner(self) -> Callable[..., R]:
        """The function compiled, to be called from compiled functions: without what converts Python's arguments."""
        compiled_function = self._compile(no_cpython_wrapper=True)
        share_machine_code(compiled_function)
        return compiled_function

    def _compile(self, **options: bool) -> Callable[..., R]:
        """Make numba's function; its machine code is kept on disk where that can be written."""
        options |= {"nogil": True, "no_cfunc_wrapper": True}
        if hasattr(_numba.core.options.DefaultOptions, "_nrt"):
            # without reference counts, which only functions that make arrays need: loops take a quarter of the time
            options["_nrt"] = False
        with _lock:
            digest = blake2b(self.digest() + repr(options).encode(), digest_size=6).hexdigest()
        name = f"{self.function.__qualname__}-{digest}"
        made = _numba.njit(self._bound("inner", name), error_model="numpy", **options)
        from jitter.core.numeric.machine_code import MachineCode  # loads numba

        made._cache = MachineCode(f"{self.function.__module__.rpartition('.')[2]}.{name}")
        return made  # type: ignore[no-any-return]

    def digest(self) -> bytes:
        """Return the digest of all that machine code on disk depends on.

        It covers the function and the functions that it calls: bytecode, constants and the global numbers that they
        read.
        """
        content_hash = blake2b(_content(self.function.__code__) + self._numbers(), digest_size=6)
        for called in self._called().values():
            content_hash.update(called.digest())
        return content_hash.digest()

    def _numbers(self) -> bytes:
        """Names and values of the global numbers that the function reads: machine code contains them."""
        module_globals = self.function.__globals__
        named = {name: module_globals.get(name) for name in self.function.__code__.co_names}
        return repr([(name, value) for name, value in named.items() if isinstance(value, int | float)]).encode()

    def _called(self) -> "dict[str, CompiledFunction[..., Any]]":
        names = self.function.__code__.co_names
        module_globals = self.function.__globals__
        return {name: module_globals[name] for name in names if isinstance(module_globals.get(name), CompiledFunction)}

    def _bound(self, kind: str, name: str) -> Callable[..., R]:
        """The function with each compiled function that it calls replaced by that one's `kind`."""
        function = self.function
        names = {name: getattr(called, kind) for name, called in self._called().items()}
        bound = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
        bound.__qualname__ = name
        bound.__module__ = function.__module__
        return bound


def compiled(function: Callable[P, R]) -> CompiledFunction[P, R]:
    """Make a loop that may run compiled. It takes arrays, tuples of arrays and numbers, by position."""
    return CompiledFunction(function)


def share_machine_code(function: Any) -> None:
    """Let calls of numba's function with constants use the machine code for integers; numba compiles each constant."""
    find = function.get_call_template
    unliteral = _numba.types.unliteral
    function.get_call_template = lambda args, kws: find(
        [unliteral(argument) for argument in args], {name: unliteral(argument) for name, argument in kws.items()}
    )


def _memory(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.data
    if isinstance(value, tuple):
        return type(value)(*map(_memory, value)) if hasattr(value, "_fields") else tuple(map(_memory, value))
    return value


def _content(code: CodeType) -> bytes:
    return code.co_code + repr([constant for constant in code.co_consts if not isinstance(constant, CodeType)]).encode()

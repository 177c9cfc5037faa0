"""Keep the machine code of compiled loops on disk: in the installation, for any processor, and in the user's cache.

A file holds one compiled function for one signature. Its name states the function's content and the signature, so no
file is ever out of date: what changes gets another name.

numba's own cache serves neither purpose: it keeps code for one kind of processor, in folders found by path, and takes
no notice of functions that a function calls.
"""

import logging
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from numba import __version__ as numba_version
from numba import config, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from jitter.core.files import cache_folder

INSTALLED: Final = Path(__file__).parents[2] / "_machine_code"
"""Folder of the machine code that the build of the wheel made, for any processor of its architecture."""

VERSION: Final = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}-numba-{numba_version}"
"""What machine code depends on besides functions and signatures: the name of its folder."""

_TYPE_ANNOTATION: Final = 6
"""Place of the annotated source in what numba writes of a compiled function: nothing here reads it."""

_log = logging.getLogger(__name__)
_build: list[Path] = []
_used: set[Path] = set()
_warned: list[str] = []


class MachineCode(NullCache):  # type: ignore[misc]  # numba has no types
    """The files of one function, as the cache that numba asks before it compiles and tells afterwards.

    The function's name states its content: see `CompiledFunction.digest`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature; None if no folder has it or its file cannot be read."""
        for path in self._files(sig, target_context):
            try:
                return CompileResult._rebuild(target_context, *pickle.loads(path.read_bytes()))
            except FileNotFoundError:
                continue
            except Exception as error:  # whatever a damaged pickle raises
                _log.info("%s cannot be read (%s): the function is compiled again", path, error)
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Write the compiled function where this process keeps machine code; warn once where that is impossible."""
        *_, path = self._files(sig, cres.target_context)
        if not _build and not (INSTALLED / VERSION).is_dir():
            _warn_once(f"no machine code for {VERSION} is installed: loops are compiled now and kept in {path.parent}")
        code = list(cres._reduce())
        code[_TYPE_ANNOTATION] = ""
        half = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(dumps(tuple(code)))
            half.replace(path)
        except OSError as error:
            _warn_once(f"compiled loops cannot be kept on disk ({error}): each run compiles them again")

    def _files(self, sig: Any, target_context: Any) -> Iterator[Path]:
        args = tuple(sig.args) if hasattr(sig, "args") else tuple(sig)
        signature = repr([_describe(argument) for argument in args])
        any_processor = f"{self.name}-{_digest(signature)}"
        if _build:
            _used.add(_build[0] / VERSION / any_processor)
            yield _build[0] / VERSION / any_processor
            return
        yield INSTALLED / VERSION / any_processor
        processor = repr(target_context.codegen().magic_tuple())
        yield users_folder() / VERSION / f"{self.name}-{_digest(signature + processor)}"


def users_folder() -> Path:
    """Return the folder of machine code compiled on this machine: NUMBA_CACHE_DIR, or one in the user's cache."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    return cache_folder("machine-code")


@contextmanager
def build_into(folder: Path) -> Iterator[None]:
    """Keep the machine code of the block's loops in this folder alone, and remove from it what the block did not use.

    The process must compile for a generic processor.
    """
    assert config.CPU_NAME == "generic", "set NUMBA_CPU_NAME=generic and NUMBA_CPU_FEATURES= before numba is loaded"
    _build.append(folder)
    try:
        yield
        for path in folder.glob("*/*"):
            if path not in _used:
                path.unlink()
    finally:
        _build.clear()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.append(message)
        _log.warning(message)


def _describe(argument: Any) -> Any:
    """Describe a type: of a named tuple also the class and the order of its fields, which the code depends on."""
    if isinstance(argument, types.BaseNamedTuple):
        made = argument.instance_class
        return (
            made.__module__,
            made.__qualname__,
            made._fields,
            [_describe(member_type) for member_type in argument.types],
        )
    if isinstance(argument, types.BaseTuple):
        return [_describe(member_type) for member_type in argument.types]
    return str(argument)


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=10).hexdigest()

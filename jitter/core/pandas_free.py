"""pyarrow without pandas, in processes of our own that need none: to load it takes longer than to read most traces."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def leave_pandas_out() -> None:
    """Keep pyarrow from loading pandas for the first array it makes.

    It looks once whether there is pandas, and is told no. From then on `pyarrow.array` takes a pandas Series for any
    sequence, until something asks for pandas by name (`to_pandas` does, and works): so this is for the command and
    its workers, never for a process of the user's.
    """
    import pyarrow as pa

    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(absent)


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not needed here", name=fullname)
        return None

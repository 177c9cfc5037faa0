"""Tables of the caller's program that a query names."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def frames_named_in(text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DataFrames and Arrow tables among some variables whose names are words of a query."""
    pandas = sys.modules.get("pandas")  # without it there is no DataFrame
    kinds = (pa.Table,) if pandas is None else (pa.Table, pandas.DataFrame)
    return {word: variables[word] for word in re.findall(r"\w+", text) if isinstance(variables.get(word), kinds)}

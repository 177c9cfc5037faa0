"""Environment variables in which launchers state a process's global rank, its node and the number of ranks."""

from collections.abc import Mapping, Sequence
from typing import Final

RANK_VARIABLES: Final = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
"""In order of trust. Slurm's comes last: in a batch script it is 0, which processes of `mpirun` there inherit."""
SIZE_VARIABLES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
NODE_VARIABLES: Final = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
"""The number of the node among the job's, from 0: all processes of a node have it alike."""
_MOST_DIGITS: Final = 9
"""A longer number is no rank."""
MAX_RANKS: Final = 1 << 20
"""A job has fewer GPUs; a larger number in a recording or a lake is no rank."""


def first_number(variables: Mapping[str, object], names: Sequence[str]) -> tuple[int, str] | tuple[None, None]:
    """Return the first of the variables `names` that is a number, and its name; Nones if none is."""
    for name in names:
        value = variables.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value)
            if text.isdecimal() and len(text) <= _MOST_DIGITS:
                return int(text), name
    return None, None

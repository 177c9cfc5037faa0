"""The relations, one `.sql` file each: bind parameters only, no templating."""

from functools import cache
from importlib.resources import files


@cache
def sql(relation: str) -> str:
    """The text of one relation's file, named by its path without suffix: `sql("capture/launched")`."""
    return files(__name__).joinpath(f"{relation}.sql").read_text(encoding="utf-8")

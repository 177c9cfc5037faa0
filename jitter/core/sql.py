"""Load the `.sql` files of a package."""

from functools import cache
from importlib.resources import files


@cache
def load_sql(package: str, name: str) -> str:
    """Return the text of `sql/<name>.sql` in a package: `load_sql("jitter.query", "ranks")`."""
    return files(package).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")

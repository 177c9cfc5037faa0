"""Writers of AMD's formats that tests alone need: rocpd databases, and the files of the first rocprof."""

from pathlib import Path
from typing import Final

import jitter.simulate
from jitter.simulate import Run
from jitter.simulate.formats import FORMATS
from tests.support.rocprof_writers import rocpd, rocprof_v1

WRITERS: Final = {"rocpd": rocpd, "rocprof-v1": rocprof_v1}
FORMS: Final = (*FORMATS, *WRITERS)


def write(run: Run, folder: Path, form: str, **options: object) -> list[Path]:
    """Write the traces of all ranks in any of `FORMS`."""
    return jitter.simulate.write(run, folder, WRITERS.get(form, form), **options)  # type: ignore[arg-type]

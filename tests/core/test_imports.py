"""What importing jitter's modules must not do."""

import subprocess
import sys


def test_no_module_loads_pandas_when_it_is_imported():
    # pyarrow loads pandas with the first array that it makes, which the commands prevent only once they open a lake
    script = """
import sys
from importlib import import_module
from pkgutil import walk_packages
import jitter
for module in walk_packages(jitter.__path__, "jitter."):
    if module.name not in ("jitter.__main__", "jitter.export.kernel_csv"):
        import_module(module.name)
        assert "pandas" not in sys.modules, module.name
"""
    subprocess.run([sys.executable, "-c", script], check=True)

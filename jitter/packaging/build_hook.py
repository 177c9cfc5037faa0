"""The hook of the wheel's build that adds the machine code of the compiled loops (hatchling's build hook interface).

Without it, each user's first report of a large job compiles the loops for half a minute. The build installs jitter's
dependencies beside hatchling, since it analyzes small jobs.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE_FOLDER = "jitter/_machine_code"


class MachineCodeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compile the loops before the wheel is packed; machine code of an earlier build is kept where it still fits."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run the compilation in a process; where it fails, say so and build a wheel without machine code."""
        python_path = os.pathsep.join(filter(None, [self.root, os.environ.get("PYTHONPATH")]))
        any_processor = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "PYTHONPATH": python_path}
        compiling = subprocess.run(
            [sys.executable, "-m", "jitter.packaging.compile_loops", str(Path(self.root, MODULE_FOLDER))],
            env=os.environ | any_processor,
            capture_output=True,
            text=True,
            check=False,
        )
        if compiling.returncode != 0:
            last_line = compiling.stderr.strip().rpartition("\n")[2]
            self.app.display_warning(f"no machine code in this wheel, first reports compile it: {last_line}")
            return
        build_data["artifacts"].append(f"{MODULE_FOLDER}/**")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

"""On PYTHONPATH: send this process a signal at its import number N after jitter handles signals.

`AT_IMPORT="N NUMBER"` in the environment; tests.torture.signals sets it.
"""

import os
import sys

if "AT_IMPORT" in os.environ:
    _at, _number = map(int, os.environ.pop("AT_IMPORT").split())
    _imports: list[str] = []

    def _watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "import" and _is_handled():
            _imports.append(str(arguments[0]))
            if len(_imports) == _at:
                os.kill(os.getpid(), _number)

    def _is_handled() -> bool:
        signal = sys.modules.get("signal")
        handler = signal.getsignal(_number) if hasattr(signal, "getsignal") else None
        return getattr(handler, "__module__", None) == "jitter.core.interrupts"

    sys.addaudithook(_watch)

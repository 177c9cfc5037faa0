"""The last line of Hugging Face's Trainer: `{'train_runtime': 1126.1257, 'train_samples_per_second': 36.372, …}`."""

import re
from typing import Final

from jitter.logs.line_parser import LineParser
from jitter.logs.prefixes import decoded

_VALUE: Final = r"['\"]?\s*:\s*['\"]?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b"
_SECONDS: Final = re.compile(rf"['\"]train_runtime{_VALUE}")
_SAMPLES: Final = re.compile(rf"['\"]train_samples_per_second{_VALUE}")


class TrainingResultParser(LineParser):
    """Run time and samples a second of each result."""

    format = "train-runtime"
    triggers = (b"'train_runtime'", b'"train_runtime"')

    def line(self, line: bytes, number: int) -> None:
        """Read the results of a line."""
        text = decoded(line)
        results = text.split("train_runtime")
        for at in range(1, len(results)):
            result = results[at - 1][-1:] + "train_runtime" + results[at]
            seconds = _SECONDS.search(result)
            samples = _SAMPLES.search(result)
            if seconds is None:
                self.context.problems.broken(self.format, number)
                continue
            self.add(
                "throughput",
                label=self.context.label,
                seconds=float(seconds[1]),
                samples_per_s=float(samples[1]) if samples else None,
            )

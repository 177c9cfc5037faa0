"""Read the logs of a job (NCCL, benchmarks, GPU clocks, bindings, …) into typed tables.

Each format has a module; one pass over a file feeds its lines to the parsers of all formats.

`sniff` names the format of a file, `parse` reads it, packed or not; `SCHEMAS` holds the relations. The package knows
neither the lake nor the analysis, executes nothing that a file holds, and keeps environment variables, command lines
and IP addresses out of the tables. Texts are kept as they are: what prints them escapes them.
"""

from typing import Final

from jitter.core.bandwidth import bandwidth
from jitter.logs.line_parser import Problem
from jitter.logs.log_file import ParsedLog, parse, parse_blocks, sniff
from jitter.logs.schemas import SCHEMAS

VERSION: Final = 19
"""Grows where the parsers take more from a log than before: logs that an older version read are read again."""

__all__ = ["SCHEMAS", "VERSION", "ParsedLog", "Problem", "bandwidth", "parse", "parse_blocks", "sniff"]

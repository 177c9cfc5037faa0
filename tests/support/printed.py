"""What a command prints."""

import json
from typing import Any

import pytest

from jitter.cli import main


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object, exit_code: int = 0) -> str:
    """Run a command; return its stdout."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == exit_code
    return capsys.readouterr().out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: object, exit_code: int = 0) -> Any:
    """Run a command; return the JSON document that it prints."""
    return json.loads(output_of(capsys, *arguments, exit_code=exit_code))

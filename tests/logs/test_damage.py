"""Damaged logs: no traceback, and what undamaged lines state stays."""

import random

import pytest
from damage import differences
from log_reading import EVIDENCE, needs_evidence, parsed

from jitter.logs import sniff
from tests.support.fuzz_depth import fuzz, of_all, some_of


@fuzz
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_lines_lose_themselves_alone(seed: int):
    assert list(differences(of_all(100, 30), seed)) == []


@fuzz
@needs_evidence
@pytest.mark.parametrize("seed", some_of(range(20), 5))
def test_no_damage_to_a_file_makes_a_traceback(seed: int):
    chance = random.Random(seed)
    for path in sorted(EVIDENCE.rglob("*")):
        if not path.is_file() or path.suffix == ".sqlite":
            continue
        content = bytearray(path.read_bytes()[:20_000])
        for _ in range(chance.randrange(1, 40)):
            if content:
                content[chance.randrange(len(content))] = chance.randrange(256)
        parsed(bytes(content[: chance.randrange(len(content) + 1)]), path.name)
        sniff(bytes(content))

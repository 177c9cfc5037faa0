"""CONTRIBUTING.md: what its recipes name is there. The changelog begins with what the package is."""

import re
from pathlib import Path

import pytest

import jitter

ROOT = Path(__file__).parents[2]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:jitter|tests)/[\w./]+|[\w.]*\w\.(?:md|toml))(?:::(\w+))?`", RECIPES)))


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_what_a_recipe_names_is_there(path: str, test: str):
    new = {"jitter/readers/myprof.py"}
    assert (ROOT / path).exists() != (path in new)
    assert not test or f"\ndef {test}(" in (ROOT / path).read_text()


def test_each_recipe_begins_with_a_test_that_fails():
    recipes = re.split(r"^## (?=An? )", RECIPES, flags=re.M)[1:]
    fails = {recipe.split("\n")[0]: recipe.count("**Fails first:**") for recipe in recipes}
    assert fails.pop("A release") == 0
    assert set(fails.values()) == {1}
    assert len(fails) == 6


def test_the_changelog_has_the_version():
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == "Unreleased"
    assert jitter.__version__ in versions

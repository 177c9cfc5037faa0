"""Kernel and call names: each distinct JSON string is decoded once and numbered."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Raw

_UNNAMED: Final = "(no name)"


class NameTable:
    """The distinct names of a trace, numbered in order of first appearance."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.invalid = 0
        """Number of names that are not valid UTF-8; their invalid bytes are replaced."""
        self._by_text: dict[bytes, int] = {}
        self._by_name: dict[str, int] = {}

    def of(self, names: Sequence[Raw | str]) -> list[int]:
        """Return the numbers of names, which are either all strings or all JSON."""
        known: Mapping[Any, int] = self._by_name if names and type(names[0]) is str else self._by_text
        keys: Iterable[Any] = names if known is self._by_name else map(bytes, cast(Sequence[Raw], names))
        numbers = list(map(known.get, keys))
        if None in numbers:
            numbers = [
                self._number_of(name) if number is None else number for number, name in zip(numbers, names, strict=True)
            ]
        return cast(list[int], numbers)

    def number(self, name: str) -> int | None:
        """Return the number of a name; None if it has not appeared."""
        return self._by_name.get(name)

    def text_of(self, name: Raw | str) -> str:
        """Return a string given as text or JSON, without numbering it."""
        return name if isinstance(name, str) else self._decoded(bytes(name))

    def _number_of(self, given: Raw | str) -> int:
        if isinstance(given, str):
            return self._number_of_name(given or _UNNAMED)
        text = bytes(given)
        number = self._by_text.get(text)
        if number is None:
            number = self._by_text[text] = self._number_of_name(self._decoded(text) or _UNNAMED)
        return number

    def _number_of_name(self, name: str) -> int:
        number = self._by_name.setdefault(name, len(self.listed))
        if number == len(self.listed):
            self.listed.append(name)
        return number

    def _decoded(self, text: bytes) -> str:
        if not text.startswith(b'"'):
            return "" if text == b"null" else text.decode("utf-8", "replace")
        try:
            words = text.decode()
        except UnicodeDecodeError:
            self.invalid += 1
            words = text.decode("utf-8", "replace")
        if "\\" in words:
            words = str(json.loads(words, strict=False))
            # half of a surrogate pair cannot be stored as UTF-8
            return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return words[1:-1]

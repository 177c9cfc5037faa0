"""Names from JSON text: each decoded once, and given a number."""

import json
from typing import Final, cast

from msgspec import Raw

_UNNAMED: Final = "(no name)"


class Names:
    """Kernel and call names in the order they appear."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.invalid = 0
        """Names that are not valid UTF-8; their bad bytes were replaced."""
        self._by_text: dict[bytes, int] = {}
        self._by_name: dict[str, int] = {}

    def of(self, raws: list[Raw]) -> list[int]:
        """The numbers of names given as JSON."""
        numbers = list(map(self._by_text.get, map(bytes, raws)))
        if None in numbers:
            numbers = [
                self._number_of(bytes(raw)) if number is None else number
                for number, raw in zip(numbers, raws, strict=True)
            ]
        return cast(list[int], numbers)

    def number(self, name: str) -> int | None:
        """The number of a name, if it has appeared."""
        return self._by_name.get(name)

    def text_of(self, raw: Raw) -> str:
        """One text given as JSON, not numbered."""
        return self._decoded(bytes(raw))

    def _number_of(self, text: bytes) -> int:
        known = self._by_text.get(text)
        if known is not None:
            return known
        name = self._decoded(text) or _UNNAMED
        number = self._by_name.setdefault(name, len(self.listed))
        if number == len(self.listed):
            self.listed.append(name)
        self._by_text[text] = number
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

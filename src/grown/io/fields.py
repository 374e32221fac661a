"""A JSON object of a file, read field by field: each with its type and range."""

from __future__ import annotations

import math
from typing import Any

from grown.errors import FileError


class Fields:
    """One object of a file's metadata."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise FileError(f"{where} is not an object")
        self._data = data
        self._where = where

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def any(self, key: str) -> Any:
        """A value of any kind, which must be there."""
        if key not in self._data:
            raise FileError(f"{self._where} lacks {key!r}")
        return self._data[key]

    def whole(self, key: str, low: int = 0, high: int = 2**53) -> int:
        """A whole number."""
        return _whole(self.any(key), low, high, f"{self._where}: {key}")

    def wholes(self, key: str, count: int, high: int = 2**31) -> tuple[int, ...]:
        """So many whole numbers."""
        return tuple(_whole(part, 0, high, f"{self._where}: {key}") for part in self._list(key, count))

    def number(self, key: str, *, above: float = -math.inf) -> float:
        """A finite number."""
        return _number(self.any(key), above, f"{self._where}: {key}")

    def number_or_none(self, key: str) -> float | None:
        """A finite number, or nothing."""
        return None if self.any(key) is None else self.number(key)

    def numbers(self, key: str, count: int, *, above: float = -math.inf) -> tuple[float, ...]:
        """So many finite numbers."""
        return tuple(_number(part, above, f"{self._where}: {key}") for part in self._list(key, count))

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.any(key)
        if not isinstance(value, bool):
            raise FileError(f"{self._where}: {key} must be true or false, but is {str(value)[:60]}")
        return value

    def text(self, key: str, longest: int = 200) -> str:
        """A short printable text."""
        return _text(self.any(key), longest, f"{self._where}: {key}")

    def text_or_none(self, key: str, longest: int = 200) -> str | None:
        """A short printable text, or nothing."""
        return None if self.any(key) is None else self.text(key, longest)

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        return self._list(key, None)

    def names(self, key: str) -> tuple[str, ...]:
        """Two different texts or more."""
        values = self._list(key, None)
        if len(values) < 2 or not all(isinstance(value, str) for value in values) or len(set(values)) != len(values):
            raise FileError(f"{self._where}: {key} must be two different names or more")
        return tuple(values)

    def _list(self, key: str, count: int | None) -> list[Any]:
        value = self.any(key)
        if not isinstance(value, list) or (count is not None and len(value) != count):
            wanted = "a list" if count is None else f"a list of {count}"
            raise FileError(f"{self._where}: {key} must be {wanted}, but is {str(value)[:60]}")
        return value


def first_line(error: BaseException) -> str:
    """What an error says, in one line of bounded length."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _whole(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise FileError(f"{what} must be a whole number from {low} to {high}, but is {str(value)[:60]}")
    return value


def _number(value: Any, above: float, what: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not value > above:
        limit = "" if above == -math.inf else f" above {above:g}"
        raise FileError(f"{what} must be a number{limit}, but is {str(value)[:60]}")
    number: float = value  # as it was written: 50 is not 50.0 in a file
    return number


def _text(value: Any, longest: int, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise FileError(f"{what} must be a short printable text, but is {str(value)[:60]!r}")
    return value

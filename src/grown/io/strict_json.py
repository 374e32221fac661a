"""JSON from a stranger: no key twice, no NaN, a known depth, bounded numbers and texts."""

from __future__ import annotations

import json
import math
from typing import Any

from grown.errors import FileError

DEEPEST = 12
LONGEST_TEXT = 4096
LARGEST_NUMBER = 2**63
MOST_VALUES = 250_000  # a thousand tasks of a hundred classes need half of them


def read(text: str, *, longest_text: int = LONGEST_TEXT) -> Any:
    """The value of a JSON text, or a `FileError` that says what is wrong with it."""
    # Counted before anything is made of them; what stands inside texts is counted too, which only errs towards less.
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise FileError(f"its JSON has more than {MOST_VALUES:,} values")
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse, parse_int=_whole)
    except RecursionError as error:
        raise FileError(f"its JSON is nested more than {DEEPEST} deep") from error
    except ValueError as error:
        raise FileError(f"its JSON is not readable ({str(error)[:100]})") from error
    _check(value, longest_text)
    return value


def write(value: Any) -> str:
    """A value as text; equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise FileError(f"its JSON has the key {twice[:60]!r} twice")
    return found


def _refuse(name: str) -> Any:
    raise FileError(f"its JSON holds {name}, which is no number")


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise FileError(f"its JSON holds a number of {len(digits)} digits")
    return int(digits)


def _check(value: Any, longest_text: int) -> None:
    """Depth, lengths and ranges, without recursion."""
    left: list[tuple[Any, int]] = [(value, 1)]
    while left:
        part, depth = left.pop()
        if isinstance(part, dict | list):
            if depth > DEEPEST:
                raise FileError(f"its JSON is nested more than {DEEPEST} deep")
            if isinstance(part, dict):
                left.extend((key, depth) for key in part)
            left.extend((inner, depth + 1) for inner in (part.values() if isinstance(part, dict) else part))
        elif isinstance(part, str):
            if len(part) > longest_text:
                raise FileError(f"its JSON holds a text of {len(part):,} characters; at most {longest_text:,} are read")
            if any("\ud800" <= letter <= "\udfff" for letter in ("" if part.isascii() else part)):
                raise FileError("its JSON holds half a character")
        elif isinstance(part, float):
            if not math.isfinite(part):
                raise FileError("its JSON holds a number that is too large")
        elif isinstance(part, int) and abs(part) >= LARGEST_NUMBER:
            raise FileError("its JSON holds a number that is too large")

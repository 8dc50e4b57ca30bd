"""Settings read with their bounds, so that a wrong one is told by name before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from research.errors import ResearchError


class Settings:
    """Numbers of the configuration by dotted key, each with its bounds."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain

    def __call__(
        self,
        key: str,
        *,
        low: float | None = None,
        above: float | None = None,
        high: float | None = None,
        below: float | None = None,
        whole: bool = False,
    ) -> float:
        """The number under ``key``, within its bounds."""
        value: Any = self.plain
        for part in key.split("."):
            value = value[part]
        return self.check(key, value, low=low, above=above, high=high, below=below, whole=whole)

    def many(self, key: str, *, below: float | None = None, empty: bool = False) -> tuple[float, ...]:
        """A list of positive numbers without repetition; one number stands for a list of one."""
        value = self.plain[key]
        if value is None and empty:
            return ()
        items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not items and not empty:
            raise ResearchError(f"{key}: expected at least one number")
        return tuple(dict.fromkeys(self.check(key, item, above=0.0, below=below) for item in items))

    @staticmethod
    def check(
        key: str,
        value: Any,
        *,
        low: float | None = None,
        above: float | None = None,
        high: float | None = None,
        below: float | None = None,
        whole: bool = False,
    ) -> float:
        """``value`` as a float.

        Raises:
            ResearchError: not a number, not whole where that is asked for, or out of bounds.
        """
        limits = [
            (low is None or (lambda v: v >= low), f"of at least {low}"),
            (above is None or (lambda v: v > above), f"above {above}"),
            (high is None or (lambda v: v <= high), f"of at most {high}"),
            (below is None or (lambda v: v < below), f"below {below}"),
        ]
        wanted = " and ".join([text for test, text in limits if test is not True])
        kind = "a whole number" if whole else "a number"
        fine = isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e300
        fine = fine and (not whole or float(value).is_integer())
        if not fine or not all(test is True or test(value) for test, _ in limits):
            raise ResearchError(f"{key}={value!r}: expected {kind}{' ' + wanted if wanted else ''}")
        return float(value)

    def flag(self, key: str) -> bool:
        """A switch."""
        if not isinstance(self.plain[key], bool):
            raise ResearchError(f"{key}={self.plain[key]!r}: expected true or false")
        return bool(self.plain[key])

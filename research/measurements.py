"""Where the measurements of the data folder come from, told beside the message that they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from research.errors import ResearchError

HINT = (
    "op tables of many GPUs come with `pip install 'pdgym[ops]'`; where to get the rest: docs/hardware.md, "
    "'Getting the measurements'"
)
ABSENT = ("in the data folder", "holds measurements/")
"""What the messages say that miss a file, a folder or the tables of a GPU."""


@contextmanager
def told_where_from() -> Iterator[None]:
    """Add the page and the extra to a message that misses measurements.

    Raises:
        ResearchError: in the place of such an error.
    """
    from envs.hardware.errors import MeasurementError

    try:
        yield
    except (MeasurementError, ResearchError) as error:
        if HINT in str(error) or not any(words in str(error) for words in ABSENT):
            raise
        raise ResearchError(f"{error}; {HINT}") from error

"""What can be done to a trace. Each step leaves a line in its provenance. The parts are in :mod:`traces.transforms`."""

from __future__ import annotations

from traces.transforms.clients import cancel
from traces.transforms.lengths import cap
from traces.transforms.rate import jitter, scale_rate, superpose, thin
from traces.transforms.rows import gather_chains, last_start_s, session_starts, subset
from traces.transforms.sessions import resample, select
from traces.transforms.tenants import coarsen_blocks, merge
from traces.transforms.window import ACROSS, ZONES, cut_sessions, cut_zones, losses, split, window, windows, zone_cuts

__all__ = [
    "ACROSS",
    "ZONES",
    "cancel",
    "cap",
    "coarsen_blocks",
    "cut_sessions",
    "cut_zones",
    "gather_chains",
    "jitter",
    "last_start_s",
    "losses",
    "merge",
    "resample",
    "scale_rate",
    "select",
    "session_starts",
    "split",
    "subset",
    "superpose",
    "thin",
    "window",
    "windows",
    "zone_cuts",
]

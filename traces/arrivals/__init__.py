"""Arrival laws, fitted from a trace and chosen by held-out likelihood: see ``docs/traces/arrivals.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.arrivals.dispersion import dispersion_curve
    from traces.arrivals.families import law_from_dict
    from traces.arrivals.fit import ArrivalFit, fit_arrivals
    from traces.arrivals.law import ArrivalLaw
    from traces.arrivals.stamps import stamp_step_s

__all__ = ["ArrivalFit", "ArrivalLaw", "dispersion_curve", "fit_arrivals", "law_from_dict", "stamp_step_s"]

_HOMES = {
    "ArrivalFit": "fit",
    "ArrivalLaw": "law",
    "dispersion_curve": "dispersion",
    "fit_arrivals": "fit",
    "law_from_dict": "families",
    "stamp_step_s": "stamps",
}


def __getattr__(name: str) -> Any:
    # Found when asked for: the default trace needs one small module of these, and few need the rest.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

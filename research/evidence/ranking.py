"""Who is ranked on a trace, and who is not because the trace could not show what the policy does.

On a trace without prefix chains nothing is ever found in a cache, whether it has sessions or not. A policy that decides
by *affinity*, for a session or its turns, is then no longer what it is: it pays for going where earlier turns are
cached, and gets nothing. Such policies are not ranked. A policy that reads prefix matches among other signals
(``cached_tokens``) is ranked, since it sees that there are none; what caches would give it is not in the figures, and
that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from research.study import Study
    from traces import Trace

SESSION_SIGNALS = ("session", "turn", "since_last_turn_s")
"""Fields of a request by which a rule keeps a session together."""
LAST_WORKERS = ("last_prefill", "last_decode")
"""Where the session's last turn was served: empty fields, and so no affinity, without sessions."""
MATCHES = "cached_tokens"

NOT_RANKED = "prefix-aware policies are not ranked on this trace"
REPLAYS = "replays the routes that the trace recorded"


def has_prefixes(trace: Trace) -> bool:
    """Whether the trace says which prompts share a prefix."""
    return trace.prefix_block_tokens > 0


def declared_needs(policy: Any) -> tuple[str, ...] | None:
    """What a rule's marker says, or a Python object's attribute ``needs``; None where nothing is said."""
    spec = getattr(policy, "spec", None)
    needs = getattr(policy, "needs", None) if spec is None else spec.needs
    return None if needs is None else tuple(needs)


def affinity_signals(policy: Any, sessions: bool) -> tuple[str, ...]:
    """The affinity signals that a policy declares, of those that a trace with or without sessions fills."""
    signals = SESSION_SIGNALS + (LAST_WORKERS if sessions else ())
    return tuple(name for name in signals if name in (declared_needs(policy) or ()))


def unranked(study: Study, trace: Trace) -> dict[str, str]:
    """Policies of a study that are not ranked on its trace, with the reason."""
    blind = not has_prefixes(trace) and not study.no_shared_prefixes
    out = {}
    for choice in study.entrants:
        if choice.replays:
            out[choice.label] = REPLAYS
        elif blind and (signals := affinity_signals(choice.build(), trace.n_sessions > 0)):
            out[choice.label] = f"decides by {', '.join(signals)}"
    return out


def prefix_words(study: Study, trace: Trace, reasons: Mapping[str, str]) -> list[str]:
    """What is to be said where a trace has no prefix information; ``reasons`` are those of :func:`unranked`."""
    if has_prefixes(trace):
        return []
    sessions = " (it has sessions, but not what their turns share)" if trace.n_sessions else ""
    lines = []
    if study.no_shared_prefixes:
        lines.append(
            f"The trace has no prefix information{sessions}: prefix-aware policies are ranked as told "
            "(no_shared_prefixes=true), which is right only if its requests share no prefixes."
        )
    else:
        whom = _names([label for label, reason in reasons.items() if reason != REPLAYS])
        lines.append(f"{NOT_RANKED} ({whom or 'none of those compared here'}): it has no prefix information{sessions}.")
    needs = {c.label: declared_needs(c.build()) for c in study.entrants if not c.replays and c.label not in reasons}
    if readers := _names([label for label, names in needs.items() if MATCHES in (names or ())]):
        lines.append(f"What prefix caches would give to {readers} is not in these figures.")
    if silent := _names([label for label, names in needs.items() if names is None]):
        lines.append(
            f"{silent}: declares no needs, so whether its place depends on prefixes is not known (an attribute needs, "
            "a tuple of the fields that it reads, says so)."
        )
    return lines


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels)

"""``action=handover``: what moving a prompt's KV cache costs on each link, and from which length on moving it pays.

The arithmetic that disaggregation is discussed with ("500 MB for a 4K prompt of a 70B: 5 ms at 100 GB/s, 50 ms at 10
GB/s"), beside the bytes that the model's own shape gives, the links' further terms, flows that share a link, a
published handover taken apart, and computing the prompt again instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.calibrating.writing import write_record
from research.errors import ResearchError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from envs.hardware.model_shape import ModelShape
    from envs.hardware.profile import HandoverLaw, Profile

PRECISIONS = ("bf16", "fp8")
RATES_BYTES_PER_S = (100e9, 10e9)
ROUND_BYTES = 500e6
"""What is often quoted for a prompt of 4,096 tokens of a 70B."""
FLOWS = (1, 2, 4, 8, 16)
LONGEST_TOKENS = 131_072
"""Longest prompt that a crossover is searched up to."""
MOST_TOKENS = 10_000_000
BUDGET_TOKENS = 8192
"""Tokens of a step in which a long prompt is computed."""
BLOCK_TOKENS = 16
"""Tokens of a KV block where no profile says."""
PICTURE = "handover.png"


@dataclass(frozen=True, slots=True)
class Pull:
    """One handover over one link, undisturbed, in seconds by term.

    Attributes:
        link: its name.
        kind: ``measured``, ``estimated`` or ``assumption``.
        bandwidth_bytes_per_s: between the two workers.
        dispatch_s: one hop of a request.
        base_s: before bytes flow.
        blocks_s: descriptors, all blocks.
        bytes_s: bytes over bandwidth.
        first_use_s: on top on a pair's first use.
    """

    link: str
    kind: str
    bandwidth_bytes_per_s: float
    dispatch_s: float
    base_s: float
    blocks_s: float
    bytes_s: float
    first_use_s: float

    def total_s(self, flows: int = 1) -> float:
        """All terms, with ``flows`` pulls of this size at once into one worker, which share its bandwidth."""
        return self.dispatch_s + self.base_s + self.blocks_s + flows * self.bytes_s


def pull(law: HandoverLaw, kv_bytes: float, blocks: int) -> Pull:
    """``kv_bytes`` in ``blocks`` KV blocks over a link."""
    return Pull(
        law.name,
        str(law.source["kind"]),
        law.bandwidth_bytes_per_s,
        law.dispatch_s,
        law.base_s,
        law.per_block_s * blocks,
        kv_bytes / law.bandwidth_bytes_per_s,
        law.connect_s,
    )


def recompute_s(profile: Profile, tokens: int, budget_tokens: int = BUDGET_TOKENS) -> float:
    """Time in which an idle worker computes a prompt of ``tokens``, in steps of at most ``budget_tokens``."""
    total, done = 0.0, 0
    while done < tokens:
        new = min(budget_tokens, tokens - done)
        total += profile.seconds(new, new * (done + new / 2), 0, 0)
        done += new
    return total


def moving_s(profile: Profile, law: HandoverLaw, tokens: int) -> float:
    """Time in which the KV cache of ``tokens`` is moved to a worker of the profile, dispatch included."""
    blocks = -(-tokens // profile.kv.block_tokens)
    return law.seconds(profile.kv.bytes_per_token * tokens, blocks)


def crossover_tokens(profile: Profile, law: HandoverLaw) -> int | None:
    """Shortest prompt from which on moving is faster than computing, for all longer ones up to LONGEST_TOKENS too.

    Found to within a KV block where a step law has tiles; None where computing is faster at LONGEST_TOKENS.
    """

    def pays(tokens: int) -> bool:
        return moving_s(profile, law, tokens) < recompute_s(profile, tokens)

    grid = sorted({1, LONGEST_TOKENS, *(min(LONGEST_TOKENS, round(1.05**i)) for i in range(400))})
    losing = [tokens for tokens in grid if not pays(tokens)]
    if not losing:
        return 1
    if losing[-1] == LONGEST_TOKENS:
        return None
    low = losing[-1]
    high = grid[grid.index(low) + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def run(config: DictConfig) -> int:
    """Print the worked example, write ``summary.json`` and the picture into ``out``; returns the exit code.

    Raises:
        ResearchError: an option that cannot be, a folder that cannot be written.
        ProfileError: a model, profile or link that is not known.
    """
    from envs.hardware.load import handover_names, load_handover

    shape, profiles = _shape_and_profiles(config)
    tokens = _tokens(config)
    names = [str(config.link)] if config.link is not None else handover_names()
    first = profiles[0] if profiles else None
    laws = [load_handover(name, gpus=first.gpus if first else None) for name in names]
    block = first.kv.block_tokens if first else BLOCK_TOKENS
    summary: dict[str, Any] = {
        "model": shape.name,
        "prompt_tokens": tokens,
        "bytes": _bytes(shape, tokens),
        "links": _links(shape, laws, tokens, block, first),
        "published": _published(laws),
        "crossover": [_crossover(profile, names, tokens) for profile in profiles],
    }
    out = _out(config, shape)
    write_record(out / "summary.json", summary)
    from research.calibrating.handover_picture import draw

    if draw(shape, laws, tokens, block, first, out / PICTURE):
        print(f"\npicture: {out / PICTURE}")
    print(f"results: {out}")
    link = "nixl-published" if "nixl-published" in names else names[0]
    if first:
        print(f"next: python -m research.compare hardware.profile={first.name} hardware.link={link}")
    else:
        print(f"no profile of {shape.name} ships, so nothing says how long computing it takes: profile=FILE names one")
        print("next: python -m research.calibrate action=show profile=NAME")
    return 0


def _tokens(config: DictConfig) -> int:
    tokens = config.prompt_tokens
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST_TOKENS:
        raise ResearchError(f"prompt_tokens={tokens}: expected a whole number from 1 to {MOST_TOKENS:,}")
    return tokens


def _shape_and_profiles(config: DictConfig) -> tuple[ModelShape, list[Profile]]:
    """The model, and the profiles in force: the one given, else every shipped one of the model."""
    from envs.hardware.load import load_profile, profile_names
    from envs.hardware.model_shape import load_model, model_names

    if config.model is None and config.profile is None:
        raise ResearchError(f"action=handover: expected model=NAME, one of {', '.join(model_names())}, or profile=NAME")
    if config.profile is None:
        shape = load_model(str(config.model))
        shipped = [load_profile(name) for name in profile_names()]
        return shape, [profile for profile in shipped if profile.model == shape.name]
    profile = load_profile(str(config.profile))
    shape = load_model(profile.model if config.model is None else str(config.model))
    if shape.name != load_model(profile.model).name:
        raise ResearchError(
            f"model={config.model} profile={config.profile}: the profile is of {profile.model}: expected one model"
        )
    return shape, [profile]


def _bytes(shape: ModelShape, tokens: int) -> list[dict[str, Any]]:
    rows = []
    print(f"KV cache of a prompt of {tokens:,} tokens of {shape.name}: {_law(shape)};")
    print("bytes over bandwidth alone:")
    sizes = [(p, float(shape.kv_bytes(tokens, p)), f"{p} cache, by the model's shape") for p in PRECISIONS]
    sizes.append(("round", ROUND_BYTES, "the round figure quoted for 4,096 tokens of a 70B"))
    for name, size, meaning in sizes:
        times = {f"at_{rate / 1e9:g}_gb_per_s_ms": size / rate * 1e3 for rate in RATES_BYTES_PER_S}
        rows.append({"cache": name, "bytes": size, **times})
        at = ", ".join(f"{size / rate * 1e3:6.1f} ms at {rate / 1e9:g} GB/s" for rate in RATES_BYTES_PER_S)
        print(f"  {size / 1e6:7,.0f} MB: {at}   ({meaning})")
    held = shape.kv_bytes(tokens, PRECISIONS[0]) / shape.value_bytes(PRECISIONS[0])
    print(f"  the round figure would be {ROUND_BYTES / held:.2f} bytes a value of this model at this length")
    return rows


def _law(shape: ModelShape) -> str:
    """Where the bytes come from, in words."""
    if all(group.kind == "full" for group in shape.attention):
        return f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim} values a token"
    kinds = ", ".join(f"{group.layers} layers {group.kind}" for group in shape.attention)
    return f"layers by kind of attention: {kinds}"


def _links(
    shape: ModelShape, laws: Sequence[HandoverLaw], tokens: int, block: int, profile: Profile | None
) -> list[dict[str, Any]]:
    blocks = -(-tokens // block)
    where = f"between workers of {profile.gpus} GPUs ({profile.name})" if profile else "as each link was measured"
    print(f"\nhandover of it over each link, {where},")
    print(
        f"in {blocks:,} blocks of {block} tokens; terms and totals in ms, alone and with others into the same worker:"
    )
    titles = ("dispatch", "base", "blocks", "bytes", "alone", *(f"{n} at once" for n in FLOWS[1:]))
    print(f"  {'link':<15}{'GB/s':>7} cache" + "".join(f"{title:>{len(title) + 2}}" for title in titles))
    rows = []
    for law in laws:
        for precision in PRECISIONS:
            one = pull(law, shape.kv_bytes(tokens, precision), blocks)
            shared = {n: one.total_s(n) for n in FLOWS}
            rows.append({"cache": precision, **asdict(one), "total_by_flows_s": shared})
            times = (one.dispatch_s, one.base_s, one.blocks_s, one.bytes_s, *shared.values())
            cells = [f"{value * 1e3:>{len(title) + 2}.1f}" for title, value in zip(titles, times, strict=True)]
            print(f"  {law.name:<15}{one.bandwidth_bytes_per_s / 1e9:7.1f} {precision:<5}" + "".join(cells))
    connect = sorted({f"{law.connect_s * 1e3:.0f}" for law in laws})
    print(f"  on a pair's first use {' or '.join(connect)} ms more; pulls into one worker share its link evenly")
    for kind in ("measured", "estimated", "assumption"):
        named = ", ".join(law.name for law in laws if law.source["kind"] == kind)
        if named:
            print(f"  {kind}: {named}")
    print("  (each term's reason: action=fit link=NAME)")
    return rows


def _published(laws: Sequence[HandoverLaw]) -> dict[str, Any] | None:
    """The published median taken apart by the link that was made of it; None where that link is not asked for."""
    from envs.hardware import links

    law = next((law for law in laws if law.name == "nixl-published"), None)
    if law is None:
        return None
    blocks = round(links.BLOCKS_64)
    one = pull(law, links.BYTES_PER_REQUEST, blocks)
    waits = links.published_handover_s(law, 64) - one.total_s()
    terms = {
        "dispatch": one.dispatch_s,
        "the engine's own work around a pull": one.base_s,
        f"descriptors of {blocks} blocks": one.blocks_s,
        f"transfer of {links.BYTES_PER_REQUEST / 1e6:.0f} MB": one.bytes_s,
        "waits for steps, and one decode step": waits,
    }
    whole = sum(terms.values())
    print(
        f"\na published handover ({links.PUBLISHED}: vLLM 0.14, NIXL, prompts of about {links.PROMPT_TOKENS:,} tokens),"
    )
    print(f"median {links.HANDOVER_64_S * 1e3:.0f} ms, as link nixl-published and the simulator's waits make it up:")
    for name, seconds in terms.items():
        print(f"  {name:<38}{seconds * 1e3:7.1f} ms  {seconds / whole:5.0%}")
    print(f"  {'sum':<38}{whole * 1e3:7.1f} ms; with blocks of 16 tokens ", end="")
    coarse = links.published_handover_s(law, 16)
    print(f"{coarse * 1e3:.0f} ms (published {links.HANDOVER_16_S * 1e3:.0f})")
    others = {other.name: links.published_handover_s(other, 64) for other in laws if other.name != law.name}
    if others:
        listed = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in others.items())
        print(f"  the same request by the other links' terms, ms: {listed}")
        bare = [other.name for other in laws if other.base_s < law.base_s / 2]
        if bare:
            print(f"  {', '.join(bare)}: the wire alone, without the engine's own work around a pull")
    return {"terms_s": terms, "sum_s": whole, "blocks_16_s": coarse, "other_links_s": others}


def _crossover(profile: Profile, names: Sequence[str], tokens: int) -> dict[str, Any]:
    from envs.hardware.load import load_handover

    again = recompute_s(profile, tokens)
    fitted = profile.fitted.context or None
    size = f"{profile.kv.bytes_per_token:,.0f} bytes a token"
    print(f"\nmoving cached tokens or computing them again, {profile.name} ({size}), an idle worker:")
    print(f"  computing {tokens:,} tokens takes {again * 1e3:.1f} ms")
    rows = []
    for name in names:
        law = load_handover(name, gpus=profile.gpus)
        moved, at = moving_s(profile, law, tokens), crossover_tokens(profile, law)
        rows.append({"link": law.name, "moving_s": moved, "crossover_tokens": at})
        words = f"pays from {at:,} tokens on" if at else f"does not pay up to {LONGEST_TOKENS:,} tokens"
        if at == 1:
            words = "pays at every length: a step of one token takes longer than the handover"
        elif at and fitted and at > fitted:
            words += f" (beyond the {fitted:,} that the law was fitted to)"
        print(f"  {law.name:<16}{moved * 1e3:8.1f} ms: moving {words}")
    print("  beside running decodes computing costs more than this: it delays each of them by its own time")
    return {"profile": profile.name, "recompute_s": again, "fitted_context_tokens": fitted, "links": rows}


def _out(config: DictConfig, shape: ModelShape) -> Path:
    if config.out is not None:
        return Path(config.out).expanduser().absolute()
    return Path("results").absolute() / f"calibrate-handover-{shape.name}"

"""Tables 5, 6 and 7: the schemas and the composition, ours beside the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import fmean

from pydantic import BaseModel

from ibrl_jax.domains.telesales.profiles.composition import (
    DIFFICULTY,
    GEOGRAPHY,
    INTENT,
    PAPER_SIZE,
    PERSONALITY,
    REACHABLE,
)
from ibrl_jax.domains.telesales.profiles.schema import (
    MAX_AGENT_TURNS,
    EvaluationAttributes,
    EvaluationProfile,
    TrainingAttributes,
)
from ibrl_jax.domains.telesales.profiles.scoring import PAPER_SCORES

PAPER_GROUPS_5: Mapping[str, int] = {
    "identity": 6,
    "contact_channels": 4,
    "purchase_intent": 6,
    "persona": 4,
    "call_context": 3,
    "willingness_control": 5,
}
"""Attributes of each group of Table 5."""

PAPER_GROUPS_6: Mapping[str, int] = {
    "basic_profile": 8,
    "location_context": 3,
    "car_needs": 9,
    "intent_state": 3,
    "lead_context": 3,
    "concerns": 6,
    "contact_info": 3,
    "speech_profile": 5,
}
"""Attributes of each group of Table 6."""


def groups(schema: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The attributes of each group of a schema."""
    result = {}
    for name, field in schema.model_fields.items():
        group = field.annotation
        assert isinstance(group, type)
        assert issubclass(group, BaseModel)
        result[name] = tuple(group.model_fields)
    return result


def table5() -> str:
    """The schema of training profiles."""
    return _schema_table(
        "Table 5: training-profile schema", groups(TrainingAttributes), PAPER_GROUPS_5
    )


def table6() -> str:
    """The schema of evaluation profiles."""
    return _schema_table(
        "Table 6: evaluation-profile schema", groups(EvaluationAttributes), PAPER_GROUPS_6
    )


def table7(profiles: Sequence[EvaluationProfile]) -> str:
    """The composition of a batch, and its scores at the start."""
    n = len(profiles)
    lines = [
        f"Table 7: composition of the evaluation set ({n} profiles, "
        f"{profiles[0].meta.composition}, seed {profiles[0].meta.seed})",
        f"{'':38}{'ours':>16}{'paper':>16}",
    ]
    for title, paper, value in _DIMENSIONS:
        counts = Counter(value(profile) for profile in profiles)
        lines.append(title)
        for key, count in paper.items():
            name = ("no", "yes")[key] if isinstance(key, bool) else key
            ours = f"{counts[key]} ({counts[key] / n:.1%})"
            lines.append(f"  {name!s:36}{ours:>16}{f'{count} ({count / PAPER_SIZE:.1%})':>16}")
    limits = sorted({profile.case_control.max_agent_turns for profile in profiles})
    told = sum(profile.story is not None for profile in profiles)
    lines.append(f"{'Turn limit':38}{', '.join(map(str, limits)):>16}{MAX_AGENT_TURNS:>16}")
    lines.append(f"{'With a story':38}{f'{told}/{n}':>16}{f'{PAPER_SIZE}/{PAPER_SIZE}':>16}")
    lines.append("Initial scores (min / mean / max)")
    for name, spread in PAPER_SCORES.items():
        values = [getattr(profile.initial_state, name) for profile in profiles]
        ours = f"{min(values):.2f}/{fmean(values):.3f}/{max(values):.2f}"
        paper = f"{spread.low:.2f}/{spread.mean:.3f}/{spread.high:.2f}"
        lines.append(f"  {name:36}{ours:>16}{paper:>16}")
    return "\n".join(lines)


def _reachable(profile: EvaluationProfile) -> bool:
    return profile.user_profile.contact_info.phone_can_add_wechat


_Dimension = tuple[str, Mapping[Hashable, int], Callable[[EvaluationProfile], Hashable]]
_DIMENSIONS: tuple[_Dimension, ...] = (
    ("Difficulty", {**DIFFICULTY}, lambda p: p.case_control.difficulty),
    ("Initial intent", {**INTENT}, lambda p: p.user_profile.intent_state.intent_depth),
    ("Geography", {**GEOGRAPHY}, lambda p: p.user_profile.location_context.remote_type),
    ("Personality", {**PERSONALITY}, lambda p: p.user_profile.intent_state.personality),
    ("Contact-reachable", {**REACHABLE}, _reachable),
)


def _schema_table(title: str, ours: Mapping[str, tuple[str, ...]], paper: Mapping[str, int]) -> str:
    lines = [
        f"{title}: {sum(map(len, ours.values()))} attributes in {len(ours)} groups "
        f"(paper: {sum(paper.values())} in {len(paper)})"
    ]
    for group, attributes in ours.items():
        count = f"{len(attributes)} (paper: {paper[group]})"
        lines.append(f"  {group:22}{count:16}{', '.join(attributes)}")
    return "\n".join(lines)

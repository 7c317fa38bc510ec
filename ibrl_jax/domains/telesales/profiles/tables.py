"""Tables 5, 6 and 7 of the paper beside ours: schemas, composition, scores, and where they differ.

What the paper says is written down here once, by the paper's own names; what we have is read off
the schemas and off a batch of profiles.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
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

PAPER_5: Mapping[str, tuple[str, ...]] = {
    "Identity and background": (
        *("name", "age", "occupation", "city", "family situation", "relevant background"),
    ),
    "Contact channels": (
        *("phone number", "WeChat ID", "WeChat privacy (wechat_privacy)", "primary account"),
    ),
    "Purchase intent": (
        *("target model", "budget", "usage scenario", "stated demands"),
        *("intent depth (intent_depth)", "intent description"),
    ),
    "Persona": ("personality traits", "concerns", "speaking style", "attitude description"),
    "Call context": ("call time", "environment", "signal quality"),
    "Willingness control": (
        *("initial willingness", "adjusted willingness", "time modifier (time_modifier)"),
        *("environment modifier (env_modifier)", "difficulty"),
    ),
}
"""Table 5: the attributes of each group, with the field's name where the paper gives one."""

PAPER_6: Mapping[str, tuple[str, ...]] = {
    "basic_profile": (
        *("name", "gender", "age range", "occupation", "current situation", "family status"),
        *("purchase experience", "previous car type"),
    ),
    "location_context": ("city", "city tier", "remote type"),
    "car_needs": (
        *("car city", "car-city memory state", "target car", "target car type"),
        *("comparison cars", "budget range", "use scenarios", "core needs", "purchase timeline"),
    ),
    "intent_state": ("intent depth", "privacy sensitivity", "personality"),
    "lead_context": ("lead status", "lead memory state", "lead recency"),
    "concerns": (
        *("objections", "objection details", "objection intensities"),
        *("per-category objection detail", "confusion points", "confusion intensities"),
    ),
    "contact_info": ("phone number", "phone-can-add-WeChat flag", "alternate WeChat contact"),
    "speech_profile": (
        *("speaking style", "disfluency pattern", "signal quality", "comprehension level"),
        "guidance need",
    ),
}
"""Table 6: the attributes of each group."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A table of ours with the paper's beside it. `notes`: where they differ, and why."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def markdown(self) -> str:
        """Title, table and notes."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        body = ["| " + " | ".join(cell or " " for cell in line) + " |" for line in lines]
        return "\n".join([f"## {self.title}", "", *body, "", *(f"- {note}" for note in self.notes)])

    def csv(self) -> str:
        """The table alone, for a spreadsheet."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.head, *self.rows])
        return out.getvalue()


def groups(schema: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The attributes of each group of a schema."""
    result = {}
    for name, field in schema.model_fields.items():
        group = field.annotation
        assert isinstance(group, type)
        assert issubclass(group, BaseModel)
        result[name] = tuple(group.model_fields)
    return result


def table5() -> Beside:
    """The schema of training profiles."""
    return _schema_table("Table 5: training-profile schema", TrainingAttributes, PAPER_5)


def table6() -> Beside:
    """The schema of evaluation profiles."""
    return _schema_table("Table 6: evaluation-profile schema", EvaluationAttributes, PAPER_6)


def table7(*batches: Sequence[EvaluationProfile]) -> Beside:
    """The composition of batches, one a column, and their scores at the start (min/mean/max)."""
    names = [batch[0].meta.composition for batch in batches]
    sizes, seeds = ({len(b) for b in batches}, {b[0].meta.seed for b in batches})
    rows: list[tuple[str, ...]] = []
    for title, paper, value in _DIMENSIONS:
        counts = [Counter(value(profile) for profile in batch) for batch in batches]
        for key, count in paper.items():
            word = ("no", "yes")[key] if isinstance(key, bool) else str(key)
            ours = [_share(c[key], len(b)) for c, b in zip(counts, batches, strict=True)]
            rows.append((title, word, *ours, _share(count, PAPER_SIZE)))
    limits = [sorted({p.case_control.max_agent_turns for p in batch}) for batch in batches]
    rows.append(("Turn limit", "", *(_listed(limit) for limit in limits), str(MAX_AGENT_TURNS)))
    told = [(sum(p.story is not None for p in batch), len(batch)) for batch in batches]
    rows.append(
        ("With a story", "", *(f"{n}/{of}" for n, of in told), f"{PAPER_SIZE}/{PAPER_SIZE}")
    )
    for name, spread in PAPER_SCORES.items():
        spreads = [_spread([getattr(p.initial_state, name) for p in batch]) for batch in batches]
        paper_spread = f"{spread.low:.2f}/{spread.mean:.3f}/{spread.high:.2f}"
        rows.append((_SCORE, name, *spreads, paper_spread))
    return Beside(
        title=f"Table 7: composition of the evaluation set ({_listed(sorted(sizes))} profiles, "
        f"seed {_listed(sorted(seeds))})",
        head=("Dimension", "", *names, "Paper"),
        rows=tuple(rows),
        notes=_differences(rows, names, sizes == {PAPER_SIZE}),
    )


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

_SCORE = "Initial score"

_WHY = {
    "sampled": "each dimension is drawn by itself with the paper's shares, so its counts scatter, "
    "and difficulty is found from the finished profile",
    "paper_exact": "every dimension has the paper's counts as quotas, and profiles are drawn again "
    "in their place until the levels of difficulty meet theirs too",
}
_SCORES_WHY = (
    "the paper gives least, mean and greatest of the scores but not how they follow from a "
    "profile; the formula is ours and the paper's ends bound it"
)


def _differences(
    rows: Sequence[Sequence[str]], names: Sequence[str], as_many: bool
) -> tuple[str, ...]:
    """What differs from the paper's column, a note a batch, and why."""
    notes = []
    counted = [row for row in rows if row[0] != _SCORE]
    for column, name in enumerate(names, start=2):
        other = sum(row[column] != row[-1] for row in counted)
        if not as_many:
            found = f"is not of the paper's size, {PAPER_SIZE}, so shares alone compare"
        elif other:
            found = f"differs in {other} of {len(counted)} rows"
        else:
            found = "is the paper's in every row"
        notes.append(f"`{name}` {found}: {_WHY[name]}.")
    if any(row[-1] not in row[2:-1] for row in rows if row[0] == _SCORE):
        notes.append(f"Scores differ: {_SCORES_WHY}.")
    notes.append(
        "Stories here are put together from templates; the paper's are a language model's, by the "
        "prompt of Table 8."
    )
    return tuple(notes)


def _schema_table(
    title: str, schema: type[BaseModel], paper: Mapping[str, tuple[str, ...]]
) -> Beside:
    """The paper's groups stand in the schema's order, and so do their attributes."""
    ours = groups(schema)
    rows, other = [], []
    for (group, attributes), (name, theirs) in zip(ours.items(), paper.items(), strict=True):
        for mine, its in zip(attributes, theirs, strict=True):
            rows.append((group, mine, name, its))
            if mine != _as_field(its):
                other.append(f"{its} is `{group}.{mine}`")
    count = f"{len(rows)} attributes in {len(ours)} groups"
    theirs_count = f"{sum(map(len, paper.values()))} in {len(paper)}"
    notes = [f"Ours: {count}. The paper: {theirs_count}."]
    renamed = [
        f"{its} is `{mine}`"
        for mine, its in zip(ours, paper, strict=True)
        if mine != _as_field(its)
    ]
    if named := [*renamed, *other]:
        notes.append(f"Ours are fields and shorter here and there: {'; '.join(named)}.")
    return Beside(
        title=f"{title}, {count}",
        head=("Group", "Attribute", "Paper's group", "Paper's attribute"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _as_field(words: str) -> str:
    """A name of the paper's as it would be a field's: the one in brackets where it gives it."""
    _, bracket, field = words.partition(" (")
    return field.rstrip(")") if bracket else words.lower().replace(" ", "_").replace("-", "_")


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.1%})"


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}/{fmean(values):.3f}/{max(values):.2f}"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))

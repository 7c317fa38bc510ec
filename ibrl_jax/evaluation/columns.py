"""What an evaluation is of: its columns, each with its counterparts, and its scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.names import ALL_HELD_OUT, read_entry

HELD_OUT, DEVELOPMENT, IN_SYSTEM, SELF_PLAY = "held-out", "development", "in-system", "self-play"
CROSS_PLAY = "cross-play"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table. `counterparts` are names; none where they depend on the row."""

    name: str
    kind: str
    counterparts: tuple[str, ...] = ()

    @property
    def counterpart(self) -> str | None:
        return "+".join(self.counterparts) or None


def met_by(config: ConfigDict) -> set[str]:
    """The names that a run's training or its start has met.

    (A start from a folder is taken to have met the teachers that the config names.)
    """
    taught = config.policy.start not in ("random", "pretrained")
    met = {f"scripted:{family}" for family in config.sft.families if taught}
    return met | {name for settings in config.roles.values() for name in settings.counterpart}


def columns_of(config: ConfigDict, met: Callable[[str], bool] | None = None) -> list[Column]:
    """Each counterpart of `config.evaluation`, in-system and self-play.

    One that training or the start has met is no held-out one, and says so; nor is a pooled column
    with such a one in it.

    Args:
        met: whether training has met a name; None: by the config itself.

    Raises:
        UserError: two columns would have one name.
    """
    known = met_by(config)
    met = met or known.__contains__
    columns = []
    for text in config.evaluation.counterparts:
        entry = read_entry(text)
        kind = DEVELOPMENT if any(met(name) for name in entry.names) else HELD_OUT
        columns.append(Column(name=entry.shown, kind=kind, counterparts=entry.names))
    if config.evaluation.in_system:
        columns.append(Column(name=IN_SYSTEM, kind=IN_SYSTEM))
    if config.evaluation.self_play:
        columns.append(Column(name=SELF_PLAY, kind=SELF_PLAY))
    names = [ALL_HELD_OUT, *(column.name for column in columns)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"config.evaluation.counterparts makes two columns named {twice[0]!r}")
    return columns


def evaluation_scenarios(config: ConfigDict, domain: Domain) -> Sequence[Scenario]:
    """The first `evaluation.scenarios` of the split, in an order that no run's seed changes."""
    scenarios = domain.scenarios(config.evaluation.split)
    wanted = config.evaluation.scenarios or len(scenarios)
    if wanted > len(scenarios):
        raise UserError(
            f"config.evaluation.scenarios is {wanted}, and {config.evaluation.split} has "
            f"{len(scenarios)}"
        )
    order = generator(0, "evaluation", config.evaluation.split).permutation(len(scenarios))
    return [scenarios[int(i)] for i in order[:wanted]]

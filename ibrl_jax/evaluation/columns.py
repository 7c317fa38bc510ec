"""What an evaluation is of: its columns, one a counterpart, and its scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator

HELD_OUT, DEVELOPMENT, IN_SYSTEM, SELF_PLAY = "held-out", "development", "in-system", "self-play"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table. `counterpart` is a name, or None where it depends on the row."""

    name: str
    kind: str
    counterpart: str | None


def columns_of(config: ConfigDict) -> list[Column]:
    """In-system, self-play, and each counterpart of `config.evaluation`.

    One that training or the start has met is no held-out one, and says so. (A start from a folder
    is taken to have met the teachers that the config names.)

    Raises:
        UserError: two columns would have one name.
    """
    taught = config.policy.start not in ("random", "pretrained")
    met = {f"scripted:{family}" for family in config.sft.families if taught}
    met |= {name for settings in config.roles.values() for name in settings.counterpart}
    columns = []
    for entry in config.evaluation.counterparts:
        name = entry if ":" in entry else f"scripted:{entry}"
        kind = DEVELOPMENT if name in met else HELD_OUT
        columns.append(Column(name=name.partition(":")[2], kind=kind, counterpart=name))
    columns.append(Column(name=IN_SYSTEM, kind=IN_SYSTEM, counterpart=None))
    columns.append(Column(name=SELF_PLAY, kind=SELF_PLAY, counterpart=None))
    names = [column.name for column in columns]
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

"""Deal-or-No-Deal (Lewis et al. 2017): negotiation with private values, verified by rule."""

from ibrl_jax.domains.dond.domain import (
    DEVELOPMENT_FAMILIES,
    HELD_OUT_FAMILIES,
    DealOrNoDeal,
    DondSettings,
)
from ibrl_jax.domains.dond.metrics import Result, Summary, by_seat, summarise

__all__ = [
    "DEVELOPMENT_FAMILIES",
    "HELD_OUT_FAMILIES",
    "DealOrNoDeal",
    "DondSettings",
    "Result",
    "Summary",
    "by_seat",
    "summarise",
]

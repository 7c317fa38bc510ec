r"""A dialogue as one role's model saw it.

Tokens in are tokens out: ids are appended, never encoded again. With `<start>` for `<|im_start|>`
and `<end>` for `<|im_end|>`:

```
ids         <start> user \n no deal <end> \n <start> assistant \n i want ... <end> \n
segment        0     0   0  2   2     0   0     0        0     0  1  1    1    1   0
loss_mask      0     0   0  0   0     0   0     0        0     0  1  1    1    1   0
turn_index     3     3   3  3   3     3   3     4        4     4  4  4    4    4   4
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np

from ibrl_jax.domains.base import Role

Seating = Literal["live", "past", "frozen"]


class Segment(IntEnum):
    """Whose a token is: the template's (with the opening prompt), one's own, the counterpart's."""

    TEMPLATE = 0
    OWN = 1
    COUNTERPART = 2


@dataclass(frozen=True, kw_only=True)
class PolicyRef:
    """Which parameters spoke: an id (`agent0`, `sft`), how they are seated, and their version."""

    id: str
    seat: Seating
    version: int


@dataclass(frozen=True, kw_only=True)
class RoleView:
    """One role's tokens of one finished dialogue; all arrays have shape [T].

    `loss_mask` is 1 exactly where this role's policy sampled the token; `behaviour_logp` is its
    log-probability under the distribution it was sampled from (0 where nothing was sampled).
    `turn_index` is the index of the public turn a token belongs to, -1 for the opening prompt.
    """

    role: Role
    policy: PolicyRef
    ids: np.ndarray
    segment: np.ndarray
    turn_index: np.ndarray
    loss_mask: np.ndarray
    behaviour_logp: np.ndarray

    def trains(self, mask: str) -> bool:
        """Whether there is a token to learn from: one of its own, under mask `all` also one that
        was heard."""
        own = bool(np.any(self.loss_mask))
        return own or (mask == "all" and bool(np.any(self.segment == Segment.COUNTERPART)))


@dataclass(kw_only=True)
class ViewBuilder:
    """Grows a view.

    `retract` drops a sampled turn that the protocol refused, before anything follows it.
    """

    role: Role
    policy: PolicyRef
    ids: list[int] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    turn_index: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    behaviour_logp: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, ids: Sequence[int], turn: int, segment: Segment) -> None:
        """Append tokens that were not sampled: template, counterpart, scripted lines. Mask 0."""
        self._append(ids, turn, segment, 0, [0.0] * len(ids))

    def sampled(self, ids: Sequence[int], logps: Sequence[float], turn: int) -> None:
        """Append tokens that this role's policy sampled. Mask 1."""
        if len(ids) != len(logps):
            raise ValueError(f"{len(ids)} sampled tokens with {len(logps)} log-probabilities")
        self._append(ids, turn, Segment.OWN, 1, logps)

    def retract(self, length: int) -> None:
        """Cut the view back to its first `length` tokens."""
        for column in (
            self.ids,
            self.segment,
            self.turn_index,
            self.loss_mask,
            self.behaviour_logp,
        ):
            del column[length:]

    def finish(self) -> RoleView:
        return RoleView(
            role=self.role,
            policy=self.policy,
            ids=np.asarray(self.ids, np.int32),
            segment=np.asarray(self.segment, np.int8),
            turn_index=np.asarray(self.turn_index, np.int32),
            loss_mask=np.asarray(self.loss_mask, np.int8),
            behaviour_logp=np.asarray(self.behaviour_logp, np.float32),
        )

    def _append(
        self, ids: Sequence[int], turn: int, segment: Segment, mask: int, logps: Sequence[float]
    ) -> None:
        self.ids.extend(int(i) for i in ids)
        self.segment.extend([int(segment)] * len(ids))
        self.turn_index.extend([turn] * len(ids))
        self.loss_mask.extend([mask] * len(ids))
        self.behaviour_logp.extend(float(p) for p in logps)

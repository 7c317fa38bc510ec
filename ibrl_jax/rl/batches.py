"""From role views to arrays: the rows that one role (or one tied policy) learns from.

A row is a view, padded on the right to a bucket's length; a batch has a fixed number of rows, so
that a run compiles one program a bucket however many seats happened to be live:

    ids          [B, T]   p p p p a a a b b a a a . . .   p prompt, a own, b counterpart, . padding
    segment_ids  [B, T]   1 1 1 1 1 1 1 1 1 1 1 1 0 0 0   1 a real token, 0 padding
    segment      [B, T]   0 0 0 0 1 1 1 2 2 1 1 1 0 0 0   `Segment` of the view
    loss_mask    [B, T]   0 0 0 0 1 1 1 0 0 1 1 1 0 0 0   1 a sampled token
    weight       [B]      1 for a real row, 0 for a padding row

Padding is known by length, never by a token's id: pad may equal end-of-sequence.

Packed, several short views share a row. They never see each other: segments are told apart, and
positions start anew. What is one figure a view then has a column for each place in a row:

    segment_ids  [B, T]   1 1 1 1 1 2 2 2 2 2 2 2 2 0 0
    positions    [B, T]   0 1 2 3 4 0 1 2 3 4 5 6 7 . .
    weight       [B, S]   1 1 0 0                           S places, two of them taken
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.struct
import jax
import numpy as np

from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView, Segment
from ibrl_jax.errors import UserError
from ibrl_jax.rl.advantages import Credit, Credits


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """`lengths`: bucket lengths in tokens, ascending. `rows`: rows of every batch.

    `micro_batch`: rows that go through the network at once; it divides `rows`. `pad_id`: the token
    that fills up a row (any id of the vocabulary will do, nothing reads it). `places`: views that
    may share a row; 1: none do.
    """

    lengths: tuple[int, ...]
    rows: int
    micro_batch: int
    pad_id: int
    places: int

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise UserError(f"batch.lengths is {self.lengths}: it must be ascending and not empty.")
        if self.lengths[0] < 1:
            raise UserError(f"batch.lengths starts with {self.lengths[0]}: it must be positive.")
        if self.micro_batch < 1 or self.rows < 1 or self.rows % self.micro_batch:
            raise UserError(
                f"batch.rows is {self.rows} with batch.micro_batch {self.micro_batch}: rows must "
                "be a positive multiple of the micro-batch."
            )
        if self.places < 1:
            raise UserError(f"batch.places is {self.places}: a row needs at least 1.")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One live, scored seat: what its model saw, and what it is credited with."""

    view: RoleView
    draw: str
    rollout: int
    credit: Credit


class RoleBatch(flax.struct.PyTreeNode):
    """The rows of one update (see the module's drawings); leading axes are [B] or [M, b].

    `behaviour_logp` are log-probabilities under the distribution that was sampled from,
    `reference_logp` those of the role's own starting policy, both in nats. `importance` multiplies
    a token's clipped objective, and nothing else: 1, but for a batch that older parameters sampled.
    All three are read only where a token is trained on. `degenerate` marks views of a group without
    a signal. Figures of views are [B], or [B, S] where S of them may share a row.
    """

    ids: Any  # [B, T] int32
    positions: Any  # [B, T] int32
    segment_ids: Any  # [B, T] int32
    segment: Any  # [B, T] int8
    loss_mask: Any  # [B, T] bool
    behaviour_logp: Any  # [B, T] float32
    reference_logp: Any  # [B, T] float32
    importance: Any  # [B, T] float32
    advantage: Any  # [B] or [B, S] float32
    degenerate: Any  # [B] or [B, S] bool
    weight: Any  # [B] or [B, S] float32

    def columns(self, count: int) -> RoleBatch:
        """The first `count` tokens of each row."""
        cut = {name: getattr(self, name)[..., :count] for name in _OF_TOKENS}
        return self.replace(**cut)


_OF_TOKENS = (
    "ids",
    "positions",
    "segment_ids",
    "segment",
    "loss_mask",
    "behaviour_logp",
    "reference_logp",
    "importance",
)


def rows_of(trajectories: Sequence[Trajectory], credits: Credits, role: str) -> list[Row]:
    """The rows of one role: one for each live, scored seat; none for a past, frozen or failed one.

    Raises ValueError when a credited seat has no view, or one that a policy not live sampled.
    """
    rows = []
    for t in trajectories:
        credit = credits.seats.get((role, t.draw, t.rollout))
        if credit is None:
            continue
        view = t.views.get(role)
        if view is None or view.policy.seat != "live" or view.role != role:
            raise ValueError(
                f"{role} of draw {t.draw}, rollout {t.rollout}: no view of a live seat"
            )
        rows.append(Row(view=view, draw=t.draw, rollout=t.rollout, credit=credit))
    return rows


def bucket(length: int, lengths: Sequence[int]) -> int | None:
    """The smallest of the ascending `lengths` that holds `length` tokens; None if none does."""
    return next((n for n in lengths if length <= n), None)


def build(rows: Sequence[Row], settings: BatchSettings) -> RoleBatch | None:
    """The host arrays of a batch; `reference_logp` is still 0 and `importance` 1.

    Views are ordered by (length, draw, rollout, role), whatever order they came in, so that a
    micro-batch holds rows of like length; padding rows come last. Packed, each goes into the first
    row that has room, the longest first; then rows are ordered by how full they are. None when no
    view holds a sampled token: a role without anything to learn from is skipped.

    Raises UserError for a view longer than the longest bucket, ValueError for more views than a
    batch has rows, for a seat given twice, and for a sampled token at the start of a view (nothing
    precedes it).
    """
    rows = sorted(rows, key=lambda r: (len(r.view.ids), r.draw, r.rollout, r.view.role))
    _check(rows, settings)
    if not any(r.view.loss_mask.any() for r in rows):
        return None
    length = bucket(max(len(r.view.ids) for r in rows), settings.lengths)
    assert length is not None
    batch = _blank(settings.rows, length, settings.pad_id, settings.places)
    for b, shared in enumerate(_packed(rows, length, settings.places)):
        begin = 0
        for place, row in enumerate(shared):
            view, n = row.view, len(row.view.ids)
            here = (b, slice(begin, begin + n))
            batch.ids[here] = view.ids
            batch.positions[here] = np.arange(n)
            batch.segment_ids[here] = place + 1
            batch.segment[here] = view.segment
            batch.loss_mask[here] = view.loss_mask
            batch.behaviour_logp[here] = view.behaviour_logp
            of_view = b if settings.places == 1 else (b, place)
            batch.advantage[of_view] = row.credit.advantage
            batch.degenerate[of_view] = row.credit.degenerate
            batch.weight[of_view] = 1.0
            begin += n
    return batch


def _check(rows: Sequence[Row], settings: BatchSettings) -> None:
    names = [(r.draw, r.rollout, r.view.role) for r in rows]
    if len(set(names)) < len(names):
        raise ValueError("a seat has two rows in one batch")
    if len(rows) > settings.rows:
        raise ValueError(f"{len(rows)} rows for a batch of {settings.rows}")
    for r in rows:
        if len(r.view.ids) > settings.lengths[-1]:
            raise UserError(
                f"the view of {r.view.role} in draw {r.draw}, rollout {r.rollout}, has "
                f"{len(r.view.ids)} tokens, and the longest of batch.lengths is "
                f"{settings.lengths[-1]}: add a longer one, or limit turns or tokens."
            )
        if r.view.loss_mask[:1].any():
            raise ValueError(f"{r.view.role}, draw {r.draw}: the first token of a row was sampled")


def _packed(rows: Sequence[Row], length: int, places: int) -> list[list[Row]]:
    """Views that share a row of `length` tokens, fullest row last; `rows` ascend in length."""
    if places == 1:
        return [[row] for row in rows]
    shared: list[list[Row]] = []
    filled: list[int] = []
    for row in reversed(rows):
        n = len(row.view.ids)
        fits = (
            i for i, used in enumerate(filled) if used + n <= length and len(shared[i]) < places
        )
        at = next(fits, len(shared))
        if at == len(shared):
            shared.append([])
            filled.append(0)
        shared[at].append(row)
        filled[at] += n
    return [shared[i] for i in sorted(range(len(shared)), key=lambda i: filled[i])]


def to_micro(batch: RoleBatch, size: int) -> RoleBatch:
    """The same rows as [M, b, ...] with b = `size`; raises ValueError unless it divides B."""
    rows = batch.ids.shape[0]
    if rows % size:
        raise ValueError(f"{rows} rows do not divide into micro-batches of {size}")
    return jax.tree.map(lambda x: x.reshape(rows // size, size, *x.shape[1:]), batch)


def abstract_batch(rows: int, length: int, places: int = 1) -> RoleBatch:
    """The shapes and dtypes of a batch [rows, length], to compile for before there is one."""
    blank = _blank(rows, length, 0, places)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), blank)


def _blank(rows: int, length: int, pad_id: int, places: int) -> RoleBatch:
    shape = (rows, length)
    of_views = (rows,) if places == 1 else (rows, places)
    return RoleBatch(
        ids=np.full(shape, pad_id, np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        segment_ids=np.zeros(shape, np.int32),
        segment=np.full(shape, Segment.TEMPLATE, np.int8),
        loss_mask=np.zeros(shape, bool),
        behaviour_logp=np.zeros(shape, np.float32),
        reference_logp=np.zeros(shape, np.float32),
        importance=np.ones(shape, np.float32),
        advantage=np.zeros(of_views, np.float32),
        degenerate=np.zeros(of_views, bool),
        weight=np.zeros(of_views, np.float32),
    )

"""What a pass need not compute: columns of padding, and log-probs of tokens that nobody trains on.

```
            T = 16                          lengths (12,), trained_share .5
    p p p p a a a b b a a . . . . .         12 columns hold every row, and
    p p p a a b b b a . . . . . . .         6 places every row's trained tokens (a)
```

Which of the programs for the listed lengths runs is found on the device: the first whose columns
hold the longest row, and whose places (that share of the columns) hold the most that a row trains
on. Where none does, the whole is computed. What is left out weighs in no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.losses import trained_tokens

Work = Callable[[RoleBatch, Any], Any]
"""Of rows [b, T], and indices [b, P] of the tokens whose log-probs it needs (T stands for none);
None: it may need all."""


def cut_to_need(
    work: Work, rows: RoleBatch, lengths: Sequence[int], share: float, mask: str
) -> Any:
    """`work` on a micro-batch [b, T], cut to the least of `lengths` that will do.

    Args:
        lengths: in columns, ascending; those above T are never taken. Each is a program of its
            own.
        share: of a length's columns, how many trained tokens a row may have there; 1: any number,
            and log-probs are asked for everywhere.
        mask: the isolation flag, which says what is trained on.
    """
    whole = rows.ids.shape[1]
    widest = whole - (places(whole, share) == whole)  # all columns with all tokens come last
    lengths = [n for n in lengths if n <= widest]
    if not lengths:
        return work(rows, None)
    columns = jnp.any(rows.segment_ids > 0, axis=0)  # [T]
    needed = jnp.max(jnp.where(columns, jnp.arange(1, whole + 1), 0))
    trained, _ = trained_tokens(rows, mask)  # [b, T]
    most = jnp.max(trained.sum(axis=1))
    room = jnp.asarray([places(n, share) for n in lengths])
    fits = (needed <= jnp.asarray(lengths)) & (most <= room)
    branch = jnp.where(fits.any(), jnp.argmax(fits), len(lengths))

    def cut(length: int) -> Callable[[RoleBatch, jax.Array], Any]:
        def there(rows: RoleBatch, trained: jax.Array) -> Any:
            count = places(length, share)
            at = None if count == length else indices(trained[:, :length], count)
            return work(rows.columns(length), at)

        return there

    branches = [*(cut(n) for n in lengths), lambda rows, _: work(rows, None)]
    return jax.lax.switch(branch, branches, rows, trained)


def places(length: int, share: float) -> int:
    """The most trained tokens that a row of `length` columns may have."""
    return min(length, max(1, round(length * share)))


def indices(chosen: jax.Array, count: int) -> jax.Array:
    """[b, count] where `chosen` [b, T] is true in each row, at most `count` times; T fills up."""

    def of_row(row: jax.Array) -> jax.Array:
        return jnp.nonzero(row, size=count, fill_value=row.shape[0])[0]

    return jax.vmap(of_row)(chosen)

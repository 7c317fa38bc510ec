"""What all implementations are measured on: ids around a turn, ends of turns, and a reward.

Dialogues are token ids and nothing else, so that no tokenizer is measured. A turn stands in its
speaker's own view between the header and the closer, as in chatml, and in the other's view too:

    view      prompt  [HEADER  own turn  CLOSER]  [HEADER  the other's turn  CLOSER]  ...
    trained                    ~~~~~~~~

A random network hardly ever samples one given id, so an end of turn is any of a twelfth of the
vocabulary: turns end at each token with a probability of about 1/12.

This file needs nothing but the standard library and numpy, since each worker has an environment of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HEADER = (1, 2, 3)
CLOSER = (4, 5)

OFTEN = 12
"""A turn ends after so many tokens on average, were it never cut."""

FIRST = 8
"""Ids below it are the headers' and closers' own: no prompt and no end of turn has them."""


def stop_ids(vocab_size: int) -> list[int]:
    """Ids that end a turn: every twelfth one."""
    return list(range(FIRST, vocab_size, OFTEN))


def prompts(vocab_size: int, draws: int, group: int, length: int, seed: int) -> list[list[int]]:
    """Random prompts of `length` ids: `group` equal ones after one another for each draw."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(FIRST, vocab_size, size=(draws, length)).tolist()
    return [list(ids) for ids in drawn for _ in range(group)]


def reward(turns: Sequence[Sequence[int]]) -> float:
    """The share of even ids among all that a role said in a dialogue."""
    said = [token for turn in turns for token in turn]
    return sum(token % 2 == 0 for token in said) / max(len(said), 1)

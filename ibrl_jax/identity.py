"""Random numbers named by what they are for, so that no result depends on the order of events.

Every draw of the run is a function of an identity, a tuple of integers and strings such as
(seed, "train", iteration, draw, rollout, role, turn):

    bits(purpose, identity) = blake2b(encode(purpose, part_1, ..., part_n))

The encoding is injective: each part carries its type and its length, so ("a", "bc") and
("ab", "c"), or 1 and "1", never meet, and two purposes never share a stream. Python's own `hash` is
salted anew in every process and is not used anywhere. A run resumes without the state of any
generator.
"""

from __future__ import annotations

import operator
from hashlib import blake2b

import numpy as np

Part = int | str
"""One component of an identity; NumPy integers count as integers, and equal integers as equal."""


def digest(purpose: str, *parts: Part, size: int) -> bytes:
    """`size` bytes (1 to 64) that depend on the purpose and on every part, and on nothing else."""
    state = blake2b(digest_size=size)
    for part in (purpose, *parts):
        if isinstance(part, str):
            kind, body = b"s", part.encode()
        else:
            kind, body = b"i", str(operator.index(part)).encode()
        state.update(kind + len(body).to_bytes(8, "little") + body)
    return state.digest()


def key_data(seed: int, *parts: Part) -> tuple[int, int]:
    """The two 32-bit words of a sampling key, for `jax.random.wrap_key_data`.

    The sampler folds a token's position in; a turn that is sampled again brings the number of the
    attempt among its parts, or it would be the same utterance again.
    """
    bits = digest("sample", seed, *parts, size=8)
    return int.from_bytes(bits[:4], "little"), int.from_bytes(bits[4:], "little")


def generator(seed: int, *parts: Part) -> np.random.Generator:
    """A host generator for an identity; name what it is for in the first part (`"matchup"`)."""
    entropy = int.from_bytes(digest("generator", seed, *parts, size=16), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))

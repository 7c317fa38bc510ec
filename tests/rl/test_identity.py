"""Random numbers depend on what they are for, all of it, and on nothing else."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.identity import digest, generator, key_data

parts = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=4)


@given(parts, parts)
def test_identities_are_equal_only_if_their_parts_are(a, b):
    assert (digest("x", *a, size=16) == digest("x", *b, size=16)) == (a == b)


def test_encoding_keeps_parts_kinds_and_domains_apart():
    assert digest("x", "a", "bc", size=8) != digest("x", "ab", "c", size=8)
    assert digest("x", 1, size=8) != digest("x", "1", size=8)
    assert digest("x", "y", size=8) != digest("xy", size=8)
    assert digest("sample", 1, size=8) != digest("matchup", 1, size=8)


def test_every_part_of_a_sampling_key_matters():
    base = (0, 3, "d", 1, "sales", 2, 0)
    others = [(1, 3, "d", 1, "sales", 2, 0), (0, 4, "d", 1, "sales", 2, 0)]
    others += [(0, 3, "e", 1, "sales", 2, 0), (0, 3, "d", 2, "sales", 2, 0)]
    others += [(0, 3, "d", 1, "customer", 2, 0), (0, 3, "d", 1, "sales", 3, 0)]
    others += [(0, 3, "d", 1, "sales", 2, 1)]
    keys = {key_data(*k) for k in [base, *others]}
    assert len(keys) == 8
    assert all(0 <= w < 2**32 for key in keys for w in key)
    assert key_data(*base) == key_data(*base)


def test_identities_are_the_same_in_every_process_whatever_pythons_hash_seed():
    code = (
        "from ibrl_jax.identity import generator, key_data;"
        "print(key_data(0, 1, 'd', 2, 'sales', 3), generator(0, 'pool', 'sales').integers(1 << 60))"
    )
    here = f"{key_data(0, 1, 'd', 2, 'sales', 3)} {generator(0, 'pool', 'sales').integers(1 << 60)}"
    child = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True
    )
    assert child.stdout.strip() == here, child.stderr

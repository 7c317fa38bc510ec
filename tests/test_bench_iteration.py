"""The bench's iteration: what both sides are measured on, and that ours learns as the trainer."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import iteration as bench
from benchmarks import workload
from ibrl_jax.models import hf_folder
from ibrl_jax.models.hf_config import TokenIds
from ibrl_jax.models.params import init_params
from ibrl_jax.models.presets import preset

VOCAB = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = preset("qwen3_micro", vocab_size=VOCAB)
    path = tmp_path_factory.mktemp("bench") / "network"
    hf_folder.write(
        path,
        network,
        init_params(network, 0),
        as_type=lambda _: np.float32,
        ids=TokenIds(bos=None, eos=(), pad=None),
        max_positions=64,
        files={},
        max_shard=1 << 30,
    )
    return path


def test_a_twelfth_of_the_vocabulary_ends_a_turn() -> None:
    for size in (640, 2048, 4096):
        assert len(workload.stop_ids(size)) == pytest.approx(size / 12, rel=0.02)
    assert not {*workload.HEADER, *workload.CLOSER} & set(workload.stop_ids(640))


def test_reward_is_the_share_of_even_ids() -> None:
    assert workload.reward([[2, 4, 5], [7]]) == 0.5
    assert workload.reward([]) == 0.0


def test_prompts_of_a_draw_are_equal_and_draws_differ() -> None:
    made = workload.prompts(VOCAB, 2, 3, 5, seed=0)
    assert [made.index(ids) for ids in made] == [0, 0, 0, 3, 3, 3]
    assert all(workload.FIRST <= i < VOCAB for ids in made for i in ids)


@pytest.mark.slow  # compiles a whole iteration of the benchmark
def test_an_iteration_moves_both_roles_and_a_fresh_pair_repeats_it(folder: Path) -> None:
    sizes = bench.Sizes(
        folder=str(folder),
        roles=("first", "second"),
        rows=4,
        prompt=4,
        turns=2,
        turn_tokens=3,
        stop_ids=(8, 20),
        micro_batch=2,
        block=3,
        stragglers=0.0,
    )
    prompts = {
        role: workload.prompts(VOCAB, 2, 2, 4, seed) for seed, role in enumerate(sizes.roles)
    }
    results = [bench.Pair(sizes).run(prompts, group=2, seed=0) for _ in range(2)]
    assert results[0]["loss"] == results[1]["loss"]
    assert results[0]["grad_norm"] == results[1]["grad_norm"]
    assert 8 <= results[0]["tokens"] <= 4 * 2 * 3
    assert all(norm > 0 for norm in results[0]["grad_norm"])

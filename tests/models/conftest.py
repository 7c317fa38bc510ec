"""What the tests of the models share."""

import jax
import numpy as np
import pytest

from ibrl_jax.models.params import abstract_params


@pytest.fixture(scope="session")
def random_params():
    """`random_params(config)`: parameters away from their fresh values, norms and biases too."""

    def make(config, seed=0):
        rng = np.random.default_rng(seed)

        def leaf(path, x):
            noise = rng.normal(size=x.shape).astype(np.float32)
            match path[-1].key:
                case "scale":
                    gated = any(key.key == "delta" for key in path)  # that norm has no offset
                    return 0.2 * noise + (gated or not config.norm_offset)
                case "A_log":  # slow decay: what leaks from one row to another would be seen
                    return -3 + 0.3 * noise
            return noise * config.hidden**-0.5

        return jax.tree_util.tree_map_with_path(leaf, abstract_params(config))

    return make

"""The scripted server of the endpoints' tests, for auditors behind an endpoint; a small domain."""

import pytest

from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain
from tests.endpoints.conftest import make_settings as make_settings
from tests.endpoints.conftest import serve as serve
from tests.telesales.smoke import smoke


@pytest.fixture(scope="module")
def domain() -> Domain:
    return build_domain(smoke("telesales.max_agent_turns=8", "telesales.test_profiles=12"))

"""One client for every OpenAI-compatible endpoint: counterparts, judges, simulators, auditors."""

from ibrl_jax.endpoints.answers import strip_thoughts as strip_thoughts
from ibrl_jax.endpoints.check import CheckReport as CheckReport
from ibrl_jax.endpoints.check import Finding as Finding
from ibrl_jax.endpoints.check import endpoint_check as endpoint_check
from ibrl_jax.endpoints.client import Answer as Answer
from ibrl_jax.endpoints.client import Endpoint as Endpoint
from ibrl_jax.endpoints.errors import EndpointError as EndpointError
from ibrl_jax.endpoints.errors import EndpointStop as EndpointStop
from ibrl_jax.endpoints.errors import Kind as Kind
from ibrl_jax.endpoints.settings import Budget as Budget
from ibrl_jax.endpoints.settings import EndpointSettings as EndpointSettings

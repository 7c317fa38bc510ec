"""Profiles of TeleSales: their schema, the pools they are drawn from, and how they are scored."""

from ibrl_jax.domains.telesales.profiles.composition import COMPOSITIONS as COMPOSITIONS
from ibrl_jax.domains.telesales.profiles.composition import Composition as Composition
from ibrl_jax.domains.telesales.profiles.consistency import problems as problems
from ibrl_jax.domains.telesales.profiles.files import dump_profiles as dump_profiles
from ibrl_jax.domains.telesales.profiles.files import read_profiles as read_profiles
from ibrl_jax.domains.telesales.profiles.generate import VERSION as VERSION
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles as evaluation_profiles
from ibrl_jax.domains.telesales.profiles.generate import training_profiles as training_profiles
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile as EvaluationProfile
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord as LeadRecord
from ibrl_jax.domains.telesales.profiles.schema import Profile as Profile
from ibrl_jax.domains.telesales.profiles.schema import State as State
from ibrl_jax.domains.telesales.profiles.schema import TrainingProfile as TrainingProfile
from ibrl_jax.domains.telesales.profiles.schema import lead_record as lead_record
from ibrl_jax.domains.telesales.profiles.scoring import difficulty as difficulty
from ibrl_jax.domains.telesales.profiles.view import Channels as Channels
from ibrl_jax.domains.telesales.profiles.view import CustomerView as CustomerView
from ibrl_jax.domains.telesales.profiles.view import channels as channels
from ibrl_jax.domains.telesales.profiles.view import view as view

"""Why a turn of TeleSales is none, in a sentence for a person."""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.base import Role
from ibrl_jax.domains.telesales.labels import AFTER_VERBAL_YES, TRAINING_CLIP, Behaviour
from ibrl_jax.domains.telesales.record import CustomerError
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, SALES
from ibrl_jax.domains.telesales.tools import END_MARKER, AgentError, Tool

_CUT_OFF = "the turn was cut off at its longest; it has to be shorter"
_NOTHING = "no turn came"
_TOOLS = (
    f"<call_function={Tool.ADD_CONTACT}(phone_number=NUMBER)> or "
    f"<call_function={Tool.SEND_INVITATION}>"
)
_FIELDS = (
    "behavior, stage, willingness_before, willingness_delta, willingness_after, patience_before, "
    "patience_delta, patience_after and reply"
)
_AFTER_YES = ", ".join(b for b in Behaviour if b in AFTER_VERBAL_YES)

AGENT: Mapping[str, str] = {
    AgentError.TRUNCATED: _CUT_OFF,
    AgentError.NOT_PRODUCED: _NOTHING,
    AgentError.EMPTY: f"nothing was said or done; say something, call {_TOOLS}, or end the call "
    f"with {END_MARKER}",
    AgentError.UNKNOWN_TOOL: f"there is no such tool; there are {_TOOLS}",
    AgentError.BAD_ARGUMENTS: f"the tool was not given what it takes; it is {_TOOLS}",
    AgentError.BROKEN_MARKER: f"a marker is not whole; there are {_TOOLS}, and {END_MARKER}",
}
CUSTOMER_TURN: Mapping[str, str] = {
    CustomerError.TRUNCATED: _CUT_OFF,
    CustomerError.NOT_PRODUCED: _NOTHING,
    CustomerError.NOT_JSON: f"the record is not one JSON object; it holds {_FIELDS}",
    CustomerError.SCHEMA: f"the record has a field too many, too few or of another kind; it holds "
    f"{_FIELDS}",
    CustomerError.UNKNOWN_LABEL: "the record has a label that there is not; behaviors are "
    f"{', '.join(Behaviour)}",
    CustomerError.OUT_OF_RANGE: "a score is not between 0 and 1",
    CustomerError.NOT_THE_STATE: "the scores before the turn are not those after your last one",
    CustomerError.ARITHMETIC: "before and delta do not add up to after",
    CustomerError.DELTA_RANGE: f"a score changes by less than {TRAINING_CLIP.low:.2f} or more than "
    f"{TRAINING_CLIP.high:.2f} in one turn",
    CustomerError.NO_VERBAL_YES: f"{_AFTER_YES} come after a yes to being added: agree first, "
    f"as with /{Behaviour.AGREE_WECHAT}",
    CustomerError.EMPTY: f"nothing was said; say something, or hang up with /{Behaviour.HANG_UP}",
}
REFUSALS: Mapping[Role, Mapping[str, str]] = {SALES: AGENT, CUSTOMER: CUSTOMER_TURN}
"""By role and code: what was wrong, and what is allowed."""

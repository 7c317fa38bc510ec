"""Why a Deal-or-No-Deal turn is none, in a sentence for a person."""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.dond.grammar import ErrorCode

_TRY = "<try> item0=1 item1=0 item2=2 </try>"
_SELECTION = "<selection> item0=1 item1=0 item2=2 </selection>"

REFUSALS: Mapping[ErrorCode, str] = {
    ErrorCode.EMPTY: "nothing was said; talk, or offer with " + _TRY,
    ErrorCode.UNCLOSED_THOUGHT: "<think> stands there and is never closed; leave it out",
    ErrorCode.UNKNOWN_TAG: "there is a tag or bracket that means nothing; tags are <try>, "
    "<selection> and <disagree>, spelled so",
    ErrorCode.UNPAIRED_TAG: "a tag is not closed; it is " + _TRY,
    ErrorCode.CLOSE_FORM: "a tag is closed with a slash, and config.dond.close=literal wants the "
    "same tag again: <try> item0=1 item1=0 item2=2 <try>",
    ErrorCode.BAD_ITEMS: "the tag does not hold all three items in order; it is " + _TRY,
    ErrorCode.BAD_NUMBER: "an item has something else than a whole number; it is " + _TRY,
    ErrorCode.OVER_COUNT: "that is more of an item than lies on the table; take at most its count",
    ErrorCode.UNTAGGED_ITEMS: "items stand there without a tag; offer with "
    f"{_TRY}, confirm with {_SELECTION}",
    ErrorCode.TWO_SELECTIONS: "there is more than one selection; a turn has one: " + _SELECTION,
    ErrorCode.DIFFERENT_TRIES: "there are two different offers; a turn has one: " + _TRY,
    ErrorCode.TRY_AND_SELECTION: "there are an offer and a selection; a turn has one of them",
    ErrorCode.DISAGREE_NOT_ALONE: "<disagree> ends the dialogue without a deal and stands alone; "
    "say it without another word, or leave it out",
    ErrorCode.SPEAKS_FOR_OTHER: "a line begins with somebody's name and a colon; say your own turn "
    "alone",
    ErrorCode.SELECTION_BEFORE_TRY: "nobody has made an offer that could be confirmed; offer with "
    + _TRY,
    ErrorCode.SELECTION_NOT_LAST_TRY: "that does not confirm the last offer of the other side; "
    "select what it leaves you, or make an offer with " + _TRY,
    ErrorCode.TRUNCATED: "the turn was cut off at its longest; it has to be shorter",
    ErrorCode.NOT_PRODUCED: "no turn came",
}
"""By code: what was wrong, and what is allowed."""

"""A person in the customer's seat: types words, and the record is written around them.

What the words do is read off them (`/HangUp`, `/AgreeWeChat` or any other behaviour before them
says it outright); the scores move by the rubric, as the agent's last turn earns, any value that it
gave believed, since a customer cannot look it up. A line that is a record already stays as it is.
Where their records have left the state, which a model is told beside each utterance of the agent
(`TeleSales.beside`), a person is told in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.telesales.adapters import call_state
from ibrl_jax.domains.telesales.cues import asked, cues
from ibrl_jax.domains.telesales.exchanges import rate_agent
from ibrl_jax.domains.telesales.labels import AFTER_VERBAL_YES, Behaviour, Language, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import rescored, write_record
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, Observation, attributes_of, initial_of
from ibrl_jax.domains.telesales.wording import customer_fields

_YES: Mapping[Language, re.Pattern[str]] = {
    "zh": re.compile(r"^\s*(?:好|行|可以|嗯|对|同意|没问题|ok)", re.IGNORECASE),
    "en": re.compile(
        r"^\s*(?:yes|yeah|yep|ok|okay|sure|fine|all ?right|go ahead)\b", re.IGNORECASE
    ),
}
_NO: Mapping[Language, re.Pattern[str]] = {
    "zh": re.compile(r"^\s*(?:不|别|没兴趣|没空)"),
    "en": re.compile(r"^\s*(?:no|nope|not)\b", re.IGNORECASE),
}
"""How a line begins that answers what the agent asked for: cues need more than that."""

_HOW: Mapping[Language, str] = {
    "zh": "直接打字即可，记录会自动补全。需要时可在话前写明动作，例如 /HangUp 再见。动作有：{}。",
    "en": "Type what you say; the record is written around it. What a line does can be said before "
    "it, as in /HangUp goodbye: {}.",
}

_STANDING: Mapping[Language, str] = {
    "zh": "（阶段：{stage}；意愿 {willingness}，耐心 {patience}；微信：{wechat}；"
    "引导方式：{guidance}）",
    "en": "(stage: {stage}; willingness {willingness}, patience {patience}; WeChat: {wechat}; "
    "guidance: {guidance})",
}

_OBJECTIONS = (Behaviour.EXPRESS_CONCERN, Behaviour.DECLINE_SOFT, Behaviour.DECLINE_HARD)


class NoBehaviour(ValueError):
    """A line begins with a slash and names no behaviour; its text says which there are."""


def brief(observation: Observation) -> str:
    """What a person is told: who they are, how they feel at the start, and how to play."""
    language: Language = observation["language"]
    start = initial_of(observation)
    lines = [f"{k}: {v}" for k, v in customer_fields(attributes_of(observation), language).items()]
    lines += [f"{name}: {getattr(start, name):.2f}" for name in ("willingness", "patience")]
    return "\n".join([*lines, "", _HOW[language].format(", ".join(Behaviour))])


def standing(observation: Observation, turns: Sequence[Turn]) -> str:
    """Where the call stands before the customer's next turn, by its own records so far."""
    language: Language = observation["language"]
    state = call_state(observation, turns, language)
    return _STANDING[language].format(
        stage=Stage(state.stage).word(language),
        willingness=state.willingness_before,
        patience=state.patience_before,
        wechat=state.wechat_status,
        guidance=state.guidance_type,
    )


def as_record(line: str, observation: Observation, turns: Sequence[Turn]) -> str:
    """The record of a line that was typed, after `turns`.

    Raises NoBehaviour.
    """
    line, language = line.strip(), observation["language"]
    if line.startswith("{"):
        return line
    own = [turn.private[CUSTOMER] for turn in turns if CUSTOMER in turn.private]
    before = State(**own[-1]["state"]) if own else initial_of(observation)
    agreed = any(record.get("behavior") == Behaviour.AGREE_WECHAT for record in own)
    heard = [exchange.rated for exchange in rate_agent(turns, language, None)]
    after = rescored(before, heard[-1].hits)[0] if heard else before
    named, words = _named(line)
    invited = any(rated.invited for rated in heard)
    behaviour = named or _behaviour(words, language, agreed=agreed, invited=invited)
    return write_record(behaviour, _stage(behaviour, agreed, len(own)), before, after, words)


def _named(line: str) -> tuple[Behaviour | None, str]:
    """The behaviour before the words, if one is named there, and the words."""
    if not line.startswith("/"):
        return None, line
    name, _, words = line[1:].partition(" ")
    for behaviour in Behaviour:
        if name.lower() == behaviour.lower() or name == behaviour.word("zh"):
            return behaviour, words.strip()
    raise NoBehaviour(f"/{name} is nothing that a customer does; there are {', '.join(Behaviour)}")


def _behaviour(words: str, language: Language, *, agreed: bool, invited: bool) -> Behaviour:
    """What words do: what an outcome rests on before what it does not."""
    said = cues(words, language)
    if "says_added" in said and agreed:
        return Behaviour.CONFIRM_ADDED
    if "says_bye" in said:
        return Behaviour.HANG_UP
    if "says_never" in said:
        return Behaviour.REJECT_REQUEST if agreed else Behaviour.DECLINE_HARD
    if "says_no" in said or (invited and _NO[language].search(words)):
        return Behaviour.REJECT_REQUEST if agreed else Behaviour.DECLINE_SOFT
    yes = "says_yes" in said or (invited and bool(_YES[language].search(words)))
    if yes and not agreed:
        return Behaviour.AGREE_WECHAT
    if asked(words, language) is not None or words.rstrip().endswith(("?", "？")):
        return Behaviour.ASK_QUESTION
    return Behaviour.PARTIAL_AGREE if yes else Behaviour.HESITATE


def _stage(behaviour: Behaviour, agreed: bool, earlier: int) -> Stage:
    """`earlier`: own turns so far, the line at the pick-up among them."""
    if agreed or behaviour is Behaviour.AGREE_WECHAT or behaviour in AFTER_VERBAL_YES:
        return Stage.WECHAT_PENDING
    if behaviour in _OBJECTIONS:
        return Stage.OBJECTION
    return Stage.EXPLORATION if earlier > 1 else Stage.OPENING

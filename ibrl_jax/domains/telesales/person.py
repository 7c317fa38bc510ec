"""A person in a seat of TeleSales: what they are told, and what becomes of what they type.

The agent types turns as a policy writes them. The customer types words, and the record is written
around them. What the words do is read off them (`/HangUp`, `/AgreeWeChat` or any other behaviour
before them says it outright); the scores move by the rubric, as the agent's last turn earns, any
value that it gave believed, since a customer cannot look it up. A line that is a record already
stays as it is. Where their records have left the state, which a model is told beside each utterance
of the agent (`TeleSales.beside`), a person is told in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn
from ibrl_jax.domains.telesales.adapters import call_state
from ibrl_jax.domains.telesales.cues import asked, cues
from ibrl_jax.domains.telesales.exchanges import rate_agent
from ibrl_jax.domains.telesales.labels import AFTER_VERBAL_YES, Behaviour, Language, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import rescored, write_record
from ibrl_jax.domains.telesales.referee import EndReason
from ibrl_jax.domains.telesales.refusals import REFUSALS
from ibrl_jax.domains.telesales.scenarios import (
    CUSTOMER,
    SALES,
    Observation,
    attributes_of,
    initial_of,
    language_of,
    lead_of,
)
from ibrl_jax.domains.telesales.tools import END_MARKER, Call, Tool, render_agent_turn
from ibrl_jax.domains.telesales.wording import customer_fields, lead_text

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

_AGENT: Mapping[Language, str] = {
    "zh": """\
汽车销售电话。你是坐席（sales），给留下线索的客户打电话。目标：让客户添加平台的企业微信。
客户口头同意还不算，要等客户确认已经添加。收入主要看这一结果；此外有问必答、不编造、不催逼、
说话简短，每句都能加分。

你知道的只有这些，其余都不能当作事实：

{lead}

接通后由你先说，最多{turns}句。直接打字说话，需要时写上工具或结束标记：

  说话        您好，我是平台的{name}，给您来电是因为您看过{car}。
  发短信邀请  好的，我发给您。{invitation}
  按号码添加  好的，我来添加。{request}
  结束通话    那先不打扰您了。{end}

每个工具一通电话只算一次，先取得客户同意再用。""",
    "en": """\
A call about a used car. You are sales, the agent, and ring up somebody who left a lead. The goal:
they add the platform's business WeChat account. A yes in words is not enough: it counts once they
say that it is added. You are paid for that above all; besides, a little for each turn that answers
what was asked, makes nothing up, does not press and is short.

This is all that you know, and nothing else can be claimed:

{lead}

They have picked up, and you speak first, {turns} turns at most. Type what you say, and in it, where
it is wanted, a tool or the mark that ends the call:

  talk             Hello, this is {name} from the platform. You looked at a {car}.
  text message     All right, I will send it. {invitation}
  contact request  I am adding you now. {request}
  end of the call  Thank you, goodbye. {end}

Each tool counts once a call; ask before you use one, and use it after a yes.""",
}

_CUSTOMER: Mapping[Language, str] = {
    "zh": """\
汽车销售电话。你是客户（customer），坐席来电，想让你添加平台的企业微信。你可以同意，也可以拒绝：
收入看你像不像下面这个人，决定是否合理，与结果无关。

{person}

意愿（willingness）是添加的意愿，耐心（patience）是继续听的耐心，0到1，随坐席的话自动变化。
意愿高时才合适同意，低时拒绝；没有耐心就挂断。

直接打字即可，记录会自动补全。例如：

  提问        车跑了多少公里？
  同意        好的，可以加。        （坐席邀请之后）
  确认        加上了。              （同意之后，且收得到申请或邀请：通话成功结束）
  挂断        /HangUp 再见。

话前可写明动作，如最后一例；动作有：{behaviours}。""",
    "en": """\
A call about a used car. You are the customer. The agent who rings you up wants you to add the
platform's business WeChat account. You may, or not: you are paid for being the person below and for
a decision that fits what was said, whichever it is.

{person}

Willingness is how ready they are to add the account, patience to go on listening, from 0 to 1. Both
move by themselves with what the agent does. A yes fits where willingness is high, a no where it is
low, and hanging up where patience is gone.

Type what you say; the record is written around it. For example:

  question      How many kilometres has it done?
  yes           Yes, fine.            (once the agent has asked for it)
  confirmation  It's added.           (after a yes, if what was sent can reach you: a success)
  hang up       /HangUp Goodbye.

What a line does can be said before it, as in the last one: {behaviours}.""",
}

_ENDS: Mapping[EndReason, str] = {
    EndReason.CONFIRMED: "a success, for the customer added the account",
    EndReason.HANG_UP: "no success, for the customer hung up",
    EndReason.AGENT_END: "no success, for the agent ended the call",
    EndReason.TURN_LIMIT: "no success, for the agent's turns ran out",
    EndReason.MALFORMED: "no success, for {offender} said no legal turn ({why})",
    EndReason.ABORTED: "broken off, without a result: {abort}",
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


def brief(scenario: Scenario, role: Role, turns: int) -> str:
    """What a person is told: who they are, what they are paid for, and how to play.

    Args:
        scenario: the role's own side of it.
        turns: the agent's, at most.
    """
    language = language_of(scenario)
    if role == SALES:
        lead = lead_of(scenario)
        return _AGENT[language].format(
            lead=lead_text(lead),
            turns=turns,
            name=lead.service.name,
            car=lead.target_car,
            invitation=render_agent_turn("", [Call(tool=Tool.SEND_INVITATION)]),
            request=render_agent_turn(
                "", [Call(tool=Tool.ADD_CONTACT, phone_number=lead.phone_number)]
            ),
            end=END_MARKER,
        )
    observation = scenario.private[role]
    start = initial_of(observation)
    lines = [f"{k}: {v}" for k, v in customer_fields(attributes_of(observation), language).items()]
    lines += [f"{name}: {getattr(start, name):.2f}" for name in ("willingness", "patience")]
    return _CUSTOMER[language].format(person="\n".join(lines), behaviours=", ".join(Behaviour))


def told(outcome: Outcome) -> str:
    """How it ended, and what it did to the customer's scores."""
    facts = outcome.facts
    words = _ENDS[EndReason(outcome.end_reason)]
    why = REFUSALS[outcome.offender][facts["error_code"]] if outcome.offender else ""
    text = words.format(offender=outcome.offender, why=why, abort=facts.get("abort"))
    if facts["verbal_yes"] and not outcome.success:
        text += ", after a yes in words"
    moved = ", ".join(
        f"{name} {facts['state_start'][name]:.2f} to {facts['state_end'][name]:.2f}"
        for name in ("willingness", "patience")
    )
    return f"{text}; {moved}"


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

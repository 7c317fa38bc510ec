"""Every closed set of labels of TeleSales, each once, with its wording in both languages.

The value of a label is what stands in records, JSON and tables. What a model writes may hold the
wording of either language instead: `Behaviour("挂断")` is `Behaviour.HANG_UP`. Tables are those of
the paper's Appendix D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

Language = Literal["zh", "en"]
LANGUAGES: tuple[Language, ...] = ("zh", "en")


class Label(StrEnum):
    """A label: its value, its Chinese wording, and its English one where that is not the value."""

    def __new__(cls, value: str, chinese: str, english: str | None = None) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member._words = {"zh": chinese, "en": english or value}
        return member

    _words: dict[Language, str]

    def word(self, language: Language) -> str:
        """How the label reads in a text of that language."""
        return self._words[language]

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """A label by its wording in either language; None makes the caller's ValueError."""
        text = str(value).strip()
        return next((m for m in cls if text in (m.value, *m._words.values())), None)


# ------------------------------------------------------------ the customer in training (Table 16)


class Behaviour(Label):
    """What the customer does in a turn; the last three need an earlier verbal yes."""

    GREETING = "Greeting", "问候"
    ASK_QUESTION = "AskQuestion", "提问"
    EXPRESS_CONCERN = "ExpressConcern", "表达顾虑"
    HESITATE = "Hesitate", "犹豫"
    REQUEST_VALUE = "RequestValue", "索要价值"
    PARTIAL_AGREE = "PartialAgree", "部分认同"
    AGREE_WECHAT = "AgreeWeChat", "同意加微信"
    DECLINE_SOFT = "DeclineSoft", "委婉拒绝"
    DECLINE_HARD = "DeclineHard", "明确拒绝"
    HANG_UP = "HangUp", "挂断"
    INTERRUPTION = "Interruption", "打断"
    CONFIRM_ADDED = "ConfirmAdded", "确认已添加"
    IGNORE_REQUEST = "IgnoreRequest", "搁置申请"
    REJECT_REQUEST = "RejectRequest", "拒绝申请"


AFTER_VERBAL_YES: frozenset[Behaviour] = frozenset(
    {Behaviour.CONFIRM_ADDED, Behaviour.IGNORE_REQUEST, Behaviour.REJECT_REQUEST}
)
"""Behaviours that are available only after the customer has agreed in words (Table 16, rule 5)."""


class Stage(Label):
    """Where the conversation stands, by the customer's record."""

    OPENING = "opening", "开场"
    EXPLORATION = "exploration", "了解"
    OBJECTION = "objection", "异议"
    DECISION = "decision", "决策"
    WECHAT_PENDING = "wechat_pending", "待加微信"


# ------------------------------------------------------- the simulator of the evaluation (Table 9)


class Intent(Label):
    """`intent_action`: where the simulator's customer is heading."""

    WARMING = "warming", "升温"
    COOLING = "cooling", "降温"
    SEEKING_VALUE = "seeking value", "寻求价值"
    RAISING_OBJECTION = "raising objection", "提出异议"
    STALLING = "stalling", "拖延"
    ENTERING_DECISION = "entering decision", "进入决策"
    AGREEING = "agreeing to add contact", "同意添加"
    CONFIRMING = "confirming completion", "确认完成"
    SHELVING = "shelving", "搁置"
    REFUSING = "refusing contact", "拒绝联系"
    TERMINATING = "terminating dialogue", "终止对话"


class DialogueAction(Label):
    """`dialogue_action`: what the simulator's customer does in a turn; outcomes are read off it."""

    GREETING_RESPONSE = "greeting response", "应答问候"
    PROACTIVE_QUESTION = "proactive question", "主动提问"
    REQUESTING_MATERIALS = "requesting materials/quotes", "索要资料或报价"
    EXPRESSING_CONCERN = "expressing concern", "表达顾虑"
    HESITANT_STALLING = "hesitant stalling", "犹豫拖延"
    SOFTENING = "softening", "态度软化"
    VERBAL_AGREEMENT = "verbal agreement", "口头同意"
    POLITE_REFUSAL = "polite refusal", "礼貌拒绝"
    EXPLICIT_REFUSAL = "explicit refusal", "明确拒绝"
    URGING = "urging the point", "催促重点"
    HANG_UP = "hang-up", "挂断"
    CONFIRMING = "confirming completion", "确认完成"
    SHELVING = "perfunctory shelving", "敷衍搁置"
    REFUSING_TO_ADD = "refusing to add contact", "拒绝添加"


# --------------------------------------------------------- the agent of the evaluation (Table 10)


class AgentAction(Label):
    """`agent_action`: what a prompted sales agent says that its turn is."""

    GREETING = "Greeting", "问候"
    NEED_PROBE = "NeedProbe", "探询需求"
    ANSWER_QUESTION = "AnswerQuestion", "回答问题"
    PRICE_QUOTE = "PriceQuote", "报价"
    PROVIDE_VALUE = "ProvideValue", "提供价值"
    EMPATHY = "Empathy", "共情"
    SOFT_PUSH = "SoftPush", "轻推"
    CONTACT_ASK = "ContactAsk", "邀请添加"
    CONTACT_GUIDANCE = "ContactGuidance", "指引添加"
    NEUTRAL = "Neutral", "中性"


# ---------------------------------------------------------- the rubric of a turn (Tables 9 and 11)


class Rubric(StrEnum):
    """Codes of what an agent's turn can do to the customer's state; several may fire in a turn."""

    B01 = "B01"
    B02 = "B02"
    B03 = "B03"
    B04 = "B04"
    B05 = "B05"
    B06 = "B06"
    B07 = "B07"
    B08 = "B08"
    B09 = "B09"
    B10 = "B10"
    B11 = "B11"
    B12 = "B12"
    B13 = "B13"
    B14 = "B14"
    B15 = "B15"
    B16 = "B16"
    B17 = "B17"
    B18 = "B18"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is added to willingness, trust and patience, each on its own."""

    willingness: float
    trust: float
    patience: float


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Lower and upper bound of what one turn may add."""

    low: float
    high: float

    def __call__(self, delta: float) -> float:
        """`delta`, or the bound that it passes."""
        return min(max(delta, self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Clips:
    """The bounds of the three states."""

    willingness: Clip
    trust: Clip
    patience: Clip


def _change(willingness: float, trust: float, patience: float) -> Change:
    return Change(willingness=willingness, trust=trust, patience=patience)


RUBRIC_CHANGES: Mapping[Rubric, Change] = {
    Rubric.B01: _change(0.05, 0.05, 0.02),
    Rubric.B02: _change(0.0, 0.06, 0.01),
    Rubric.B03: _change(0.01, 0.05, -0.02),
    Rubric.B04: _change(0.08, 0.07, 0.01),
    Rubric.B05: _change(0.04, 0.05, 0.01),
    Rubric.B06: _change(0.0, 0.03, 0.04),
    Rubric.B07: _change(-0.05, -0.03, -0.10),
    Rubric.B08: _change(-0.04, -0.04, -0.03),
    Rubric.B09: _change(0.0, -0.15, 0.0),
    Rubric.B10: _change(-0.04, 0.0, -0.05),
    Rubric.B11: _change(0.0, -0.03, -0.04),
    Rubric.B12: _change(-0.12, -0.10, -0.12),
    Rubric.B13: _change(0.02, 0.0, 0.01),
    Rubric.B14: _change(0.0, 0.0, 0.0),
    Rubric.B15: _change(0.0, 0.0, 0.0),  # it is worth what else is done in the same turn
    Rubric.B16: _change(-0.10, -0.05, -0.15),
    Rubric.B17: _change(0.0, 0.03, 0.05),
    Rubric.B18: _change(0.0, 0.0, -0.10),
}
"""Table 11, before clipping."""

RUBRIC_WORDS: Mapping[Rubric, Mapping[Language, str]] = {
    Rubric.B01: {
        "zh": "正面且具体地回答了用户当前的主要问题",
        "en": "gives a direct and concrete answer to the main question at hand",
    },
    Rubric.B02: {
        "zh": "说明了自己的身份、来电缘由和联系目的",
        "en": "says who is calling, where the lead came from and why",
    },
    Rubric.B03: {
        "zh": "承认不确定，并明确表示会去核实",
        "en": "admits not knowing and clearly offers to find out",
    },
    Rubric.B04: {
        "zh": "给出可以核对的依据或实质内容",
        "en": "gives evidence that can be checked, or something concrete",
    },
    Rubric.B05: {
        "zh": "讲清后续联系的用途，且与用户的问题有关",
        "en": "explains what staying in touch is for, in connection with the question",
    },
    Rubric.B06: {
        "zh": "尊重隐私，或明确承诺少打扰",
        "en": "respects privacy or clearly promises to disturb less",
    },
    Rubric.B07: {
        "zh": "用户已说在忙，客服仍长篇推销",
        "en": "keeps pitching at length although the customer said they are busy",
    },
    Rubric.B08: {
        "zh": "完全不回答，只催着加联系方式",
        "en": "answers nothing and only pushes for the contact",
    },
    Rubric.B09: {
        "zh": "价格含糊、虚称“最低价”、夸大保证或制造紧迫感",
        "en": "vague prices, an untrue “lowest price”, inflated guarantees or made-up urgency",
    },
    Rubric.B10: {
        "zh": "同样的催促重复三轮以上，没有任何新信息",
        "en": "repeats one push for 3 turns or more with nothing new",
    },
    Rubric.B11: {
        "zh": "所答与用户的问题毫不相干",
        "en": "answers something that has nothing to do with the question",
    },
    Rubric.B12: {
        "zh": "用户明确拒绝后仍反复索要联系方式",
        "en": "goes on asking for the contact after a clear refusal",
    },
    Rubric.B13: {
        "zh": "答完主要问题后，轻轻推进下一步",
        "en": "suggests a next step lightly, once the main question is answered",
    },
    Rubric.B14: {
        "zh": "纯粹的过渡话语，没有信息增量",
        "en": "only fills the gap, without information",
    },
    Rubric.B15: {
        "zh": "发出添加邀请或可操作的入口（按同一轮的其他表现计分）",
        "en": "invites to the contact or sends an entry to act on (scored by the rest of the turn)",
    },
    Rubric.B16: {
        "zh": "明显过长、书面腔、像念稿",
        "en": "is noticeably long, written in style, like a script read aloud",
    },
    Rubric.B17: {
        "zh": "简短、自然、切题",
        "en": "is short, natural and to the point",
    },
    Rubric.B18: {
        "zh": "去掉标记后的可见话语不少于120字",
        "en": "visible words of 360 characters or more, markers removed",
    },
}

EVALUATION_CLIPS = Clips(
    willingness=Clip(low=-0.20, high=0.15),
    trust=Clip(low=-0.20, high=0.12),
    patience=Clip(low=-0.15, high=0.08),
)
"""Table 9: what one turn may change in the simulator."""

TRAINING_CLIP = Clip(low=-0.20, high=0.15)
"""Table 16: what one turn may change in the training customer, for willingness and patience."""

"""The lines of `rule_dev`, by which a start is tuned: in no training and in no final evaluation.

About half of its questions turn on a word that no line of `rule_mix` or `rule_v1` has.
"""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.telesales.cues import C
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.phrases import Phrases
from ibrl_jax.domains.telesales.profiles.terms import Memory

_EN = Phrases(
    who=("Whom do you work for?", "Would you introduce yourself?"),
    memory={
        Memory.CLEAR: ("Indeed, it caught my eye.", "I do recall sending something."),
        Memory.VAGUE: ("It sounds familiar.", "I couldn't swear to it."),
        Memory.NONE: ("That must be a mistake.", "News to me, honestly."),
    },
    busy=("In the middle of a busy shift, speak fast.", "My hands are at work, no time to lose."),
    questions={
        C.PRICE: ("At which figure was it listed at?", "What sort of prices are we talking about?"),
        C.FEES: ("Will I be charged a fee on signing?", "Any other money that goes to you?"),
        C.CONDITION: ("Did a collision bend the frame?", "Would you call its condition sound?"),
        C.MILEAGE: ("How many kilometres lie behind it?", "Would you say the mileage is honest?"),
        C.WARRANTY: ("How far does your warranty reach?", "Would a broken gearbox be covered?"),
        C.OWNERSHIP: ("Was it transferred from hand to hand?", "Were all former owners careful?"),
        C.BATTERY: ("In what state is its battery?", "Can one trust that battery?"),
        C.FINANCE: ("Could I pay down a part only?", "Does a bank give loans on it?"),
        C.AVAILABILITY: ("May I take it that it's for sale?", "Somebody told me it was sold."),
        C.REMOTE: ("To what city would that take me?", "Have you parked it close by?"),
        C.PRIVACY: ("Will messages pour in afterwards?", "Shall I be bothered by others?"),
    },
    again=("You wander off.", "Kindly stay with what I said."),
    exactly=("Are those solid facts?", "Hand me something firmer."),
    noted=("Makes sense.", "Fair enough."),
    waiting=("Then ring a colleague.", "I shall expect your word."),
    what_for=("Whatever is that good for?", "Does it bring me anything?"),
    undecided=("My mind isn't made up.", "There is more to weigh."),
    not_now=("I'm not interested for the time being.", "Never mind that today."),
    never=("Stop calling about it, final word.", "Once and for all: stop asking."),
    bye=("Enough talk, bye.", "Hanging up on you now."),
    agreed=("With pleasure, happy to connect with you.", "Convinced, so you can add this account."),
    this_number=("Right, this number works there too.", "Simply dial it, it's this number."),
    other_number=("Look under {number} for it.", "The account sits at {number}."),
    by_invitation=("An invitation would reach me.", "Post an invitation to the phone."),
    still_waiting=("My screen is empty.", "When will you act?"),
    not_found=("Leads to a stranger, forget it.", "An error pops up, so never mind."),
    added=("Accepted with one tap.", "Wonderful, it's added to the others."),
)

_ZH = Phrases(
    who=("贵姓，哪家的？", "您是做什么的？"),
    memory={
        Memory.CLEAR: ("没错，上周留意过。", "有的，我在挑。"),
        Memory.VAGUE: ("说不准。", "似乎听过。"),
        Memory.NONE: ("您打错了吧。", "从来没有的事。"),
    },
    busy=("手头忙着，快说。", "眼下不方便，直说。"),
    questions={
        C.PRICE: ("售价定在哪儿？", "报价能透露吗？"),
        C.FEES: ("签字那天交什么钱？", "杂费怎么算？"),
        C.CONDITION: ("维修记录给看吗？", "有剐蹭的痕迹吗？"),
        C.MILEAGE: ("里程可信吗？", "一共走了多少？"),
        C.WARRANTY: ("过保了没有？", "保修管哪些？"),
        C.OWNERSHIP: ("车主是什么人？", "之前转过几次？"),
        C.BATTERY: ("衰减厉害不？", "电池让人放心吗？"),
        C.FINANCE: ("月供压力大吗？", "贷款批得下来吗？"),
        C.AVAILABILITY: ("别人预订了吧？", "还有没有这台？"),
        C.REMOTE: ("跨省怎么提？", "异地怎么办？"),
        C.PRIVACY: ("会老发东西来吗？", "谁有我电话？"),
    },
    again=("扯远了。", "请围绕我说的来。"),
    exactly=("有把握吗？", "拿点实在的。"),
    noted=("有道理。", "说得过去。"),
    waiting=("去问同事吧。", "静候回音。"),
    what_for=("对我有何用处？", "图什么呢？"),
    undecided=("主意没定。", "还要掂量。"),
    not_now=("眼前不需要。", "这事算了吧。"),
    never=("别再打来说这个。", "请尊重我，别再提。"),
    bye=("到这里，再见啦。", "话说完了，我先挂了。"),
    agreed=("乐意，同意加。", "被你说服了，你加我吧。"),
    this_number=("没错就是这个号。", "直接搜，这个号码就能。"),
    other_number=("请搜{number}看看。", "账号在{number}。"),
    by_invitation=("邀请短信我收得到。", "来个邀请短信。"),
    still_waiting=("屏幕空空的。", "何时动手？"),
    not_found=("是个陌生人，算了。", "报错了，不弄啦。"),
    added=("点一下就通过了。", "太好了，加好了。"),
)

DEV: Mapping[Language, Phrases] = {"zh": _ZH, "en": _EN}

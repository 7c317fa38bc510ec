"""What the rule-based customers say: families in Chinese and English, with no line in common.

Every question is one that `cues.asked` reads as its category, and no other line asks anything about
the car. No line of a family that a start learns from has four words in a row of `rule_v2`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.telesales.cues import C
from ibrl_jax.domains.telesales.customer_dev import DEV
from ibrl_jax.domains.telesales.customer_pools import MIX
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.phrases import Phrases
from ibrl_jax.domains.telesales.profiles.terms import Memory

_V1_ZH = Phrases(
    who=("你是哪里的？", "你哪位，什么事？"),
    memory={
        Memory.CLEAR: ("哦，我看过那台车。", "对，是我留的。"),
        Memory.VAGUE: ("好像有点印象。", "是有这么回事吧，记不太清。"),
        Memory.NONE: ("我怎么不记得了。", "没印象，可能随手点的。"),
    },
    busy=("我这会儿正忙，你长话短说。", "我在忙，快点讲。"),
    questions={
        C.PRICE: ("这车多少钱？", "现在报价是多少？"),
        C.FEES: ("手续费要多少？", "除了车款还有哪些费用？"),
        C.CONDITION: ("车况怎么样？", "出过事故没有？"),
        C.MILEAGE: ("跑了多少公里？", "里程是多少？"),
        C.WARRANTY: ("质保还有多久？", "保修到什么时候？"),
        C.OWNERSHIP: ("过户过几次？", "前面几任车主？"),
        C.BATTERY: ("电池还剩多少健康度？", "电池衰减大不大？"),
        C.FINANCE: ("首付要几成？", "贷款首付最低多少？"),
        C.AVAILABILITY: ("车还在不在？", "这车卖掉没有？"),
        C.REMOTE: ("车在哪个城市？", "车现在停在哪？"),
        C.PRIVACY: ("你们会不会老打电话骚扰我？", "我的号码会不会泄露出去？"),
    },
    again=("我问的不是这个。", "先回答我的问题。"),
    exactly=("到底怎么样，说准一点。", "这个说得不清楚。"),
    noted=("哦，知道了。", "嗯，行。"),
    waiting=("那你查好了跟我说。", "行，查清楚再说。"),
    what_for=("加了有什么用？", "加这个干什么？"),
    undecided=("我再想想。", "再看看吧。"),
    not_now=("先不加了。", "现在不想加。"),
    never=("不加，别再提了。", "我不会加的，不用再问。"),
    bye=("就这样吧，挂了。", "不说了，再见。"),
    agreed=("行，那你加我吧。", "可以，加一下吧。"),
    this_number=("对，就是这个号。", "是的，这个号码就能加。"),
    other_number=("这个号加不上，你加{number}。", "不是这个，微信是{number}。"),
    by_invitation=("用号码搜不到我，你发个邀请短信吧。", "搜不到的，发邀请短信我来点。"),
    still_waiting=("那你倒是加呀。", "等你加呢。"),
    not_found=("没收到能用的，算了。", "这个加不上，算了。"),
    added=("好，通过了。", "收到，已经加上了。"),
)

_V1_EN = Phrases(
    who=("Where are you calling from?", "Who are you, and what is it?"),
    memory={
        Memory.CLEAR: ("Oh yes, I looked at that one.", "Right, that was me."),
        Memory.VAGUE: ("That rings a bell.", "Maybe, I only half remember."),
        Memory.NONE: ("I can't recall that.", "No idea, I may have clicked something."),
    },
    busy=("I'm busy right now, make it short.", "I'm busy, so be quick."),
    questions={
        C.PRICE: ("How much is the car?", "What is the price now?"),
        C.FEES: ("What are the fees?", "What charges come on top of that?"),
        C.CONDITION: ("What condition is it in?", "Has it had any accidents?"),
        C.MILEAGE: ("What is the mileage?", "How many km has it done?"),
        C.WARRANTY: ("How long is the warranty?", "Is it still under warranty?"),
        C.OWNERSHIP: ("How many owners did it have?", "Who owned it before?"),
        C.BATTERY: ("How good is the battery still?", "What is the battery health?"),
        C.FINANCE: ("What is the down payment?", "How much down payment for a loan?"),
        C.AVAILABILITY: ("Is it still available?", "Is it sold already?"),
        C.REMOTE: ("Which city is it in?", "Where is the car?"),
        C.PRIVACY: (
            "Will you keep calling me all day to pester me?",
            "Who else gets it, what about my privacy?",
        ),
    },
    again=("That's not what I asked.", "Answer my question first."),
    exactly=("Be more exact, please.", "That wasn't clear."),
    noted=("I see.", "All right, noted."),
    waiting=("Then tell me once you have looked.", "Fine, find out first."),
    what_for=("What would that be for?", "Why would I add you?"),
    undecided=("Let me think about it.", "I'll see."),
    not_now=("I'd rather not add anybody now.", "Not now."),
    never=("No. Don't ask for it again.", "I won't add you, stop asking."),
    bye=("That's it, goodbye.", "I'm hanging up, bye."),
    agreed=("OK, go ahead and add me.", "Fine, you can add me."),
    this_number=("Yes, it's this number.", "Yes, this number works."),
    other_number=("Not this one, add {number}.", "It's another number, {number}."),
    by_invitation=(
        "You won't find me by number, text me an invitation.",
        "Send an invitation by text, I'll tap it.",
    ),
    still_waiting=("So go ahead.", "I'm waiting for it."),
    not_found=("That leads nowhere, forget it.", "It doesn't work, leave it."),
    added=("OK, it's added.", "Got it, I accepted."),
)

_V2_ZH = Phrases(
    who=("请问哪边打来的？", "谁呀，有何贵干？"),
    memory={
        Memory.CLEAR: ("嗯，前阵子确实在找车。", "没错，我提过。"),
        Memory.VAGUE: ("大概有吧。", "隐约记得点过。"),
        Memory.NONE: ("我没弄过呀。", "是不是搞错人了。"),
    },
    busy=("手上有事走不开，一两句讲完。", "我正要进会议室，拣要紧的说。"),
    questions={
        C.PRICE: ("标价到底几万？", "你们准备卖多少？"),
        C.FEES: ("过户费服务费加起来是多少？", "还有没有别的钱要另外收？"),
        C.CONDITION: ("有没有大修或者撞过？", "水泡火烧有没有？"),
        C.MILEAGE: ("表显走了多少？", "有没有调过表，实际跑多远？"),
        C.WARRANTY: ("厂家还保不保？", "在保吗，剩几个月？"),
        C.OWNERSHIP: ("这是几手的？", "倒过几手了？"),
        C.BATTERY: ("续航还剩几成？", "电池老化得厉害吗？"),
        C.FINANCE: ("能按揭吗，先拿多少？", "办分期的话第一笔多少？"),
        C.AVAILABILITY: ("是现车吗？", "有没有被人订走？"),
        C.REMOTE: ("我在外地，车放在什么地方？", "要去哪座城市提？"),
        C.PRIVACY: ("我的信息不会外泄吧？", "以后会不会天天打扰我？"),
    },
    again=("答非所问了吧。", "你没听我说话。"),
    exactly=("你确定吗，给个准话。", "含含糊糊的，再讲一遍。"),
    noted=("这样啊。", "好的，明白。"),
    waiting=("成，等你消息。", "那先放着，回头给我准信。"),
    what_for=("为什么非要加？", "加上以后发什么？"),
    undecided=("不急，我琢磨琢磨。", "我跟家里商量商量。"),
    not_now=("以后有需要再联系。", "暂时用不着。"),
    never=("免了，这事到此为止。", "说了不要，请尊重一下。"),
    bye=("我先撂了。", "没别的我挂电话了。"),
    agreed=("那好，就加一个吧。", "成，你申请吧，我同意。"),
    this_number=("嗯，手机号同步的。", "没错，搜本机号就有。"),
    other_number=("本机没开，搜{number}。", "换一个，{number}才是。"),
    by_invitation=("我关了搜索，短信发链接给我。", "只能短信发链接。"),
    still_waiting=("怎么没动静？", "申请呢，没看到。"),
    not_found=("打不开，不弄了。", "查无此人，不折腾了。"),
    added=("弹出来了，点了同意。", "成了，列表里有你了。"),
)

_V2_EN = Phrases(
    who=("Sorry, which company?", "And you would be?"),
    memory={
        Memory.CLEAR: ("Yes, I've been searching for one.", "Correct, I did sign up."),
        Memory.VAGUE: ("Could be.", "I faintly remember tapping on it."),
        Memory.NONE: ("I never did that.", "Are you sure you mean me?"),
    },
    busy=(
        "I've got my hands full, two sentences at most.",
        "I'm off to a meeting, the gist please.",
    ),
    questions={
        C.PRICE: ("What's it priced at?", "What are you asking for it?"),
        C.FEES: ("Any extras to pay?", "What does the transfer fee come to?"),
        C.CONDITION: ("Was it ever damaged?", "Any flood or crash repairs?"),
        C.MILEAGE: ("What's on the odometer?", "How far has it been driven?"),
        C.WARRANTY: ("Is it covered by the maker, and till when?", "Months left under cover?"),
        C.OWNERSHIP: ("How often has it changed hands?", "Is there more than one former owner?"),
        C.BATTERY: ("Has the battery worn?", "What's left of the battery?"),
        C.FINANCE: ("What would I put down?", "Can I finance it, from how much?"),
        C.AVAILABILITY: ("Do you still have it?", "Nobody reserved it yet?"),
        C.REMOTE: ("I'm out of town, so where is it?", "Where do I pick it up?"),
        C.PRIVACY: ("How come you got my number?", "Am I going to be spammed?"),
    },
    again=("You're dodging.", "Did you hear me at all?"),
    exactly=("Really? Give it to me straight.", "Rather vague, once more."),
    noted=("Got that.", "Understood."),
    waiting=("Right, I'll hear from you.", "Park it then, and report back."),
    what_for=("What's in it for me?", "And what would you message?"),
    undecided=("No hurry, I'll mull it over.", "I'll talk to my family."),
    not_now=("I'll be in touch if need be.", "No need for the moment."),
    never=("No means no, let it go.", "I said no, respect that."),
    bye=("I'll leave it there.", "Nothing else? Then I'm off."),
    agreed=("Very well, put in your request.", "Sure, I'll accept your request."),
    this_number=("Yep, it's tied to my phone.", "Correct, search my mobile."),
    other_number=("Mine is off, search {number}.", "Use {number} instead."),
    by_invitation=("Search is off, text a link.", "Only a link by text works."),
    still_waiting=("Nothing shows up yet.", "Where's that request?"),
    not_found=("Dead link, never mind.", "Nobody there, I'm done trying."),
    added=("It popped up, accepted.", "Done, you're on my list."),
)

WORDS: Mapping[str, Mapping[Language, Phrases]] = {
    "rule_v1": {"zh": _V1_ZH, "en": _V1_EN},
    "rule_v2": {"zh": _V2_ZH, "en": _V2_EN},
    "rule_mix": MIX,
    "rule_dev": DEV,
}

"""What the scripted sellers say, in Chinese and English."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ibrl_jax.domains.telesales.cues import C
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.terms import Category


@dataclass(frozen=True, kw_only=True)
class SellerPhrases:
    """Lines, and by what a seller knows what a customer means.

    `{name}`, `{car}`, `{value}` and `{topic}` are filled from the lead record and the question.
    """

    greetings: tuple[str, ...]
    plain_greetings: tuple[str, ...]  # without a name
    facts: Mapping[Category, tuple[str, ...]]
    evidence: tuple[str, ...]  # after a fact: by what it can be checked
    stop: str  # after a fact without
    unknown: tuple[str, ...]
    to_check: tuple[str, ...]  # after a clause that says that nothing is registered
    promises: tuple[str, ...]
    invitations: tuple[str, ...]
    pushes: tuple[str, ...]  # without a reason
    asks_number: tuple[str, ...]
    sends: tuple[str, ...]
    kind: tuple[str, ...]
    farewells: tuple[str, ...]
    this_number: re.Pattern[str]
    by_invitation: re.Pattern[str]


_ZH = SellerPhrases(
    greetings=(
        "您好，我是平台的顾问{name}，您之前在网上看过{car}，想跟您简单聊聊。",
        "您好，我是{name}，您前几天在平台上留过{car}的咨询，给您打电话是想确认一下需求。",
        "您好，这边是平台顾问{name}，看到您在平台浏览过{car}，来电是想帮您介绍一下。",
    ),
    plain_greetings=(
        "您好，我是平台的顾问，您之前在网上看过这台车，想跟您简单聊聊。",
        "您好，这边是平台顾问，您前几天咨询过这台车，来电是想帮您介绍一下。",
    ),
    facts={
        C.PRICE: ("这台报价是{value}，", "现在标价{value}，"),
        C.FEES: ("手续这块费用一共{value}，", "服务费加过户费合计{value}，"),
        C.CONDITION: ("车况方面{value}，", "查下来{value}，"),
        C.MILEAGE: ("表显里程{value}，", "到现在跑了{value}，"),
        C.WARRANTY: ("质保还剩{value}个月，", "保修期还有{value}个月，"),
        C.OWNERSHIP: ("一共过户{value}次，", "之前过户过{value}次，"),
        C.BATTERY: ("电池健康度{value}%，", "检测下来电池还有{value}%，"),
        C.FINANCE: ("首付比例{value}%，", "贷款的话首付{value}%，"),
        C.AVAILABILITY: ("这台目前{value}，", "我刚看了，车{value}，"),
        C.REMOTE: ("车在{value}，", "这台车停在{value}，"),
    },
    evidence=(
        "检测报告里写着，您可以核对。",
        "保养记录上能查到。",
        "有实车照片为证。",
        "车源页上就有登记信息。",
        "签约时合同里会写明。",
        "您看行驶证也对得上。",
        "实拍视频里也看得到。",
    ),
    stop="就是这个情况。",
    unknown=(
        "{topic}这一项我手头没有，我去核实清楚再告诉您。",
        "说实话{topic}没有登记，我帮您查一下，今天回复您。",
        "关于{topic}我不确定，需要核实，问好了发给您。",
        "{topic}暂时没有记录，我找检测师确认好再回您。",
        "这个我不清楚，{topic}得查系统，查到了马上告诉您。",
        "您问的{topic}我得核实，确认后给您准话。",
    ),
    to_check=(
        "，我核实清楚再告诉您。",
        "，我帮您查一下。",
        "，我问一下再答复您。",
        "，我确认好再给您回话。",
    ),
    promises=(
        "您放心，不会频繁打扰您，只发跟这台车有关的。",
        "号码不会给别人，信息我们保密，您说停我就停。",
        "我保证少打扰，您的资料不会外泄。",
        "平时不会乱发消息，有事才联系您。",
    ),
    invitations=(
        "要是方便，加您微信，我把{topic}的资料发给您看？",
        "您看行的话我加您一个微信，{topic}相关的报告整理好发过去，不会打扰您。",
        "我这边可以加下微信，把{topic}的明细发给您，您慢慢看。",
        "回头微信上把{topic}那部分的照片发给您，加您一下可以吗？",
    ),
    pushes=("加个微信吧。", "咱们加一下微信好吧。", "麻烦通过一下微信。", "先加微信再说。"),
    asks_number=("好的，您这个手机号就是微信号吗？", "请问这个号码能搜到您的微信吗？"),
    sends=("好，我这就发，您看一下通过就行。", "发过去了，您点一下同意。"),
    kind=(
        "您问得真好，非常感谢您的信任。",
        "我特别理解您的心情，祝您生活愉快。",
        "感谢您的耐心，您真是太客气了。",
        "您说得对，我们一定用心为您服务。",
        "谢谢您，跟您聊天非常高兴。",
        "您的意见很宝贵，我们非常重视。",
    ),
    farewells=("好的，那不打扰您了，再见。", "明白，祝您顺利，再见。"),
    this_number=re.compile(r"就是这个号|这个号码就能|手机号同步|本机号就有"),
    by_invitation=re.compile(r"邀请短信|短信发链接"),
)

_EN = SellerPhrases(
    greetings=(
        "Hello, this is {name} from the platform, you looked at a {car} online, I wanted to help.",
        "Good day, my name is {name}, you left an enquiry on the {car}, I'm following up.",
        "Hi, I am {name}, an advisor, you recently browsed the {car}, I'd like to tell you more.",
    ),
    plain_greetings=(
        "Hello, this is your platform advisor, you looked at this car online, I wanted to help.",
        "Hi, I am an advisor of the platform, you asked about this car, I'd like to tell you more.",
    ),
    facts={
        C.PRICE: ("The price of this one is {value}", "It is listed at {value} now"),
        C.FEES: ("The fees come to {value} altogether", "All charges together are {value}"),
        C.CONDITION: ("On its condition, {value}", "They looked it over and found {value}"),
        C.MILEAGE: ("The mileage is {value}", "The odometer shows {value}"),
        C.WARRANTY: (
            "The warranty has {value} months left",
            "It is under warranty for {value} months",
        ),
        C.OWNERSHIP: ("It had {value} previous owners", "So far {value} owners are on file"),
        C.BATTERY: ("The battery health is {value}%", "They measured the battery at {value}%"),
        C.FINANCE: ("The down payment is {value}%", "For a loan you put down {value}%"),
        C.AVAILABILITY: ("The car is {value}", "I looked just now, it is {value}"),
        C.REMOTE: ("The car is in {value}", "This car stands in {value}"),
    },
    evidence=(
        ", and the inspection report has it.",
        ", as you can see in the service records.",
        ", there are photos of the car to prove it.",
        ", the listing page says the same.",
        ", and it goes into the contract.",
        ", which the registration document confirms.",
        ", the video of the car shows it too.",
    ),
    stop=".",
    unknown=(
        "I don't have that about {topic}, I'll check and let you know today.",
        "Honestly, {topic} is not recorded here, let me find out and get back to you.",
        "I'm not sure on {topic}, I need to check with a colleague, then I'll tell you.",
        "For {topic} nothing is there, I have to check, and once I confirm I'll call you.",
        "{topic} is not registered, I will verify it and send you word.",
    ),
    to_check=(
        ", I'll check and let you know.",
        ", let me find out and call you.",
        ", I want to verify it and get back to you.",
        ", once I confirm it I'll tell you.",
    ),
    promises=(
        "I won't disturb you, and I only send what concerns this car.",
        "We never share numbers, and I won't call again without reason.",
        "Your details stay here, I won't pass them to anybody.",
        "I'll only send something when there is news, promised.",
    ),
    invitations=(
        "If you like, may I add you on WeChat and send you the report on {topic}?",
        "Shall I add your WeChat? I can send you details of the {topic} and won't disturb you.",
        "I could send you the documents about {topic}, would it be fine to add you on WeChat?",
        "Would you like the records on {topic}? I'd add your contact and send the details over.",
    ),
    pushes=(
        "Let me add your WeChat.",
        "Please accept me on WeChat.",
        "Just share your contact, OK?",
        "Add me on WeChat first.",
    ),
    asks_number=(
        "Thank you, is this phone number your WeChat number?",
        "Great, does this number find you on WeChat?",
    ),
    sends=("Good, I am sending it, just accept it.", "It is on its way, please tap accept."),
    kind=(
        "What a good question, thank you so much.",
        "I understand you completely, have a wonderful day.",
        "Thanks for your patience, you are most kind.",
        "How right you are, we will do our very best.",
        "It is a pleasure to talk with you.",
        "Your opinion means a lot to all of us.",
    ),
    farewells=(
        "All right, I won't take more of your time, goodbye.",
        "Understood, all the best, bye.",
    ),
    this_number=re.compile(r"it's this number|this number works|to my phone|my mobile"),
    by_invitation=re.compile(r"invitation|text a link|link by text", re.IGNORECASE),
)

WORDS: Mapping[Language, SellerPhrases] = {"zh": _ZH, "en": _EN}

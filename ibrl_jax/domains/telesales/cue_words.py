"""The words by which `cues` finds topics and cues: patterns, any of which is enough.

A word of Latin script stands between word boundaries where it must be a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.terms import Category

C = Category

# fmt: off

TOPICS: Mapping[Language, Mapping[Category, tuple[str, ...]]] = {
    "zh": {
        C.PRICE: (
            "价格", "价钱", "多少钱(?!要)", "报价", "售价", "标价", "价位", "卖多少", "什么价",
        ),
        C.FEES: ("手续费", "过户费", "服务费", "费用", "杂费", "别的钱", "另外收", "什么钱"),
        C.CONDITION: (
            "车况", "事故", "水泡", "泡过水", "火烧", "碰撞", "剐蹭", "撞过", "碰过", "维修记录",
            "大修",
        ),
        C.MILEAGE: ("公里", "里程", "调表", "调过表", "表显", "跑了多少", "跑多远", "走了多少"),
        C.WARRANTY: ("质保", "保修", "过保", "还保不保", "在保吗"),
        C.OWNERSHIP: (
            "过户(?:过|了|次|记录|几)", "几手", "几任", "一手车", "车主", "转过几次", "倒过几手",
        ),
        C.BATTERY: ("电池", "续航", "衰减"),
        C.FINANCE: ("贷款", "首付", "分期", "月供", "按揭"),
        C.AVAILABILITY: (
            "还在不在", "还在吗", "还有没有", "在售", "卖掉", "卖出去", "卖了没", "还在卖",
            "预订", "订走", "现车",
        ),
        C.REMOTE: (
            "异地", "外地", "哪个城市", "哪座城市", "车在哪", "在什么地方", "停在哪",
            "车就?在(?!售|卖)", "跨省",
        ),
        C.PRIVACY: (
            "隐私", "骚扰", "打扰", "泄露", "外泄", "老打电话", "信息.{0,8}哪", "有我电话",
            "老发", "号码.{0,4}哪来",
        ),
    },
    "en": {
        C.PRICE: (
            r"\bprices?\b", r"\bpriced\b", r"\blisted at\b", "how much is", "how much for",
            "asking for it", "does it cost", "pay for this car",
        ),
        C.FEES: (
            r"\bfees?\b", r"\bcharges?\b", "on top of (?:that|the price)", r"\bextras\b",
            r"\bother money\b",
        ),
        C.CONDITION: (
            r"\bcondition\b", r"\baccidents?\b", r"\bflood(?:ed)?\b", r"\bcollision\b",
            r"\bcrash(?:ed)?\b", r"\bdamaged?\b", r"\bscratch", r"\bever hit\b", r"\bflooding\b",
            r"\bmajor repair",
        ),
        C.MILEAGE: (
            r"\bmileage\b", r"\bodometer\b", r"\bkm\b", r"\bkilomet", "how far has it been",
            r"\bkilomet",
        ),
        C.WARRANTY: (r"\bwarranty\b", r"\bunder cover\b", r"\bcovered\b"),
        C.OWNERSHIP: (r"\bowners?\b", r"\bowned\b", "changed hands", r"\btransferred\b"),
        C.BATTERY: (r"\bbattery\b",),
        C.FINANCE: (
            r"\bloans?\b", r"\bdown payment\b", r"\binstal?lments?\b", r"\bfinanc",
            r"\bput down\b", r"\bpay down\b",
        ),
        C.AVAILABILITY: (
            r"\bavailable\b", r"\bstill there\b", r"\bon sale\b", r"\breserved\b", r"\bsold\b",
            r"\bstill have it\b", r"\bfor sale\b",
        ),
        C.REMOTE: (
            "which city", "what city", "where is (?:the car|it)", "out of town", "car is in",
            "where do i", r"\bcity is\b", r"\bparked\b", r"\banother city\b",
            r"\bcar stands in\b",
        ),
        C.PRIVACY: (
            r"\bprivacy\b", r"\bspam", r"\bpester", r"\bdisturb", r"\bbother",
            "my (?:number|details)", "calling me all", r"\bmessages\b",
        ),
    },
}
"""What a question or a statement is about."""

CUES: Mapping[Language, Mapping[str, tuple[str, ...]]] = {
    "zh": {
        "identity": ("我是", "我叫", "这边是", "这里是"),
        "source": (
            ("您?(?:之前|前两天|前几天|上次|此前|最近)?在?.{0,8}(?:平台|网上|上面"
             "|APP|app).{0,10}(?:看过|浏览|咨询|询价|留|登记|估价|预约|收藏|提交)"),
            "您(?:留|提交|登记)(?:过|了)",
        ),
        "purpose": (
            ("(?:来电|打电话|给您(?:打|去)|联系您|想)(?:.{0,6})(?:是|跟您|和您|为了"
             "|想|聊|说|介绍|确认|回访)"),
        ),
        "admit": (
            "不确定", "不清楚", "不太清楚", "没有登记", "没登记", "没有记录", "手头没有",
            "暂时没有", "还得查", "需要核实", "得核实", "要核实", "得查",
        ),
        "verify": (
            ("(?:核实|查|问|确认)(?:一下|清楚|完|好|到|了)?.{0,10}(?:告诉|回复|答复"
             "|回您|发给|给您回|给您准)"),
            "(?:帮您|给您|替您)(?:去)?(?:核实|查一下|查清|问一下|确认)",
        ),
        "evidence": (
            "检测报告", "登记信息", "登记证", "保养记录", "维保记录", "实车照片", "实拍视频",
            "合同", "行驶证", "车源页",
        ),
        "follow_up": (
            ("(?:发|传|整理|列)(?:给|到|一份|个|一下|您|过去)?.{0,16}(?:报告|视频"
             "|照片|报价|明细|资料|方案|记录|流程)"),
            "(?:报告|视频|照片|报价|明细|资料|方案|记录|流程).{0,8}(?:发|传)(?:给|到|您|过)",
        ),
        "contact": ("微信", "企微", "加(?:您|一下|个|上)?(?:好友|联系)", "联系方式"),
        "asks_contact": (
            "加(?:您|你)一下", "加一下(?:您|你|吧)",
            "(?:加|添加|通过|留)(?:您|一下|一个|个|上|下)?.{0,8}(?:微信|企微|好友|联系方式)",
            "(?:微信|企微).{0,6}(?:加|添加|通过|留)(?:您|一下|个|上)?",
        ),
        "asks_number": (
            "(?:号码?|手机|电话).{0,10}(?:是|就是|绑|能搜|能加|对应|关联).{0,8}微信",
            "微信.{0,10}(?:是|绑|同)(?:.{0,6})(?:号|手机|电话)",
        ),
        "next_step": (
            "看车", "试驾", "要不要", "方便的话", "下一步", "考虑", "您看行", "可以吗", "好吗",
        ),
        "privacy": (
            "不会(?:.{0,6})(?:打扰|骚扰|外泄|泄露|乱发|频繁)", "只发",
            "不(?:群发|乱发|会给别人)", "少打扰", "不多打扰", "信息.{0,4}保密",
        ),
        "pressure": (
            "最低价", "全网最低", "全市最低", "绝对(?:没|不|是|划算)", "百分之?百", "100%保证",
            "包您", "最后一台", "今天不", "马上(?:就)?涨", "错过就", "再不.{0,6}就没",
            "十几万吧", "便宜得很", "保证(?:没|不会|是)",
        ),
        "written": (
            "首先.{2,}其次", "综上所述", "尊敬的", "如下[:：]", "第一[，、].{2,}第二",
            r"^\s*[-•*\d]+[.、)]",
        ),
        "busy": (
            "在忙", "走不开", "进会议室", "正忙", "忙着", "开车", "开会", "长话短说", "没时间",
            "不方便",
        ),
        "says_yes": (
            "(?<!不)加我吧", "加一下吧", "加一个吧", "那就加", "你加(?:我)?吧", "申请吧",
            "可以加(?!您)", "同意加",
        ),
        "says_added": (
            "通过了", "加上了", "添加好了", "已经加", "点了同意", "列表里有你", "加好了",
        ),
        "says_no": (
            "不加", "不想加", "别再提", "不会加", "不需要", "用不着", "到此为止", "免了",
            "说了不要", "以后.{0,6}再联系", "算了", "不弄", "不折腾",
        ),
        "says_never": (
            "不加，别", "别再提", "不会加", "到此为止", "请尊重", "说了不要", "别再打",
            "不用再问",
        ),
        "says_bye": ("挂了", "再见", "撂了", "挂电话", "先这样", "不说了"),
    },
    "en": {
        "identity": (r"\b(?:this is|my name is|i am|i'm)\b(?! (?:not|sorry|calling|the|a lot))",),
        "source": (
            (r"\byou (?:recently )?(?:left|browsed|looked|enquired|asked|requested"
             r"|saved|booked|submitted|registered)\b"),
            r"\byour (?:enquiry|request|lead)\b",
        ),
        "purpose": (
            r"\bcalling (?:to|about|because)\b", r"\bi wanted to\b", r"\bi'd like to\b",
            r"\bfollowing up\b", r"\bfollow up on\b",
        ),
        "admit": (
            r"\bnot sure\b", r"\bdon't know\b", r"\bdo not know\b", r"\bnot registered\b",
            r"\bnot recorded\b", r"\bdon't have (?:that|it|this)\b", r"\bhave to check\b",
            r"\bneed to check\b",
        ),
        "verify": (
            (r"\b(?:check|find out|verify|confirm|look it up)\b.{0,40}\b(?:tell you"
             r"|let you know|get back|send you|call you)\b"),
            r"\bcheck (?:that|it|this) for you\b",
        ),
        "evidence": (
            r"\binspection report\b", r"\bservice records?\b",
            r"\bregistration (?:record|document)s?\b", r"\bphotos of the car\b",
            r"\bvideo of the car\b", r"\bcontract\b", r"\blisting page\b",
        ),
        "follow_up": (
            (r"\bsend (?:you |over )?.{0,30}\b(?:report|video|photos?|quote|breakdown"
             r"|documents?|plan|records?|details|steps)\b"),
        ),
        "contact": (r"\bwechat\b", r"\bcontact\b"),
        "asks_contact": (
            r"\b(?:add|connect|accept|share)\b.{0,30}\b(?:wechat|contact)\b",
            r"\bwechat\b.{0,20}\b(?:add|accept|connect)\b",
        ),
        "asks_number": (r"\bnumber\b.{0,40}\bwechat\b", r"\bwechat\b.{0,30}\bnumber\b"),
        "next_step": (
            r"\bviewing\b", r"\btest drive\b", r"\bwould you like\b", r"\bshall (?:i|we)\b",
            r"\bnext step\b", r"\bif you like\b", r"\bis that all right\b",
        ),
        "privacy": (
            r"\bwon't (?:disturb|bother|spam|pester|share|pass)\b", r"\bonly send\b",
            r"\bnever share\b", r"\bkeep (?:it|your (?:number|details)) (?:private|to myself)\b",
            r"\bnot disturb\b",
        ),
        "pressure": (
            r"\blowest price\b", r"\bcheapest (?:in|anywhere)\b", r"\babsolutely\b",
            r"\b100 ?(?:%|percent) (?:sure|guarantee)", r"\bi guarantee\b", r"\blast one\b",
            r"\bonly today\b", r"\bbefore it's gone\b", r"\bprices? (?:is|are) about to\b",
            r"\bdirt cheap\b",
        ),
        "written": (
            r"\bfirst(?:ly)?\b.{3,}\bsecond(?:ly)?\b", r"\bin conclusion\b",
            r"\bdear (?:sir|customer)\b", r"\bas follows\b", r"^\s*(?:[-•*]|\d+[.)])\s",
        ),
        "busy": (
            r"\bbusy\b", r"\bhands full\b", r"\bto a meeting\b", r"\bdriving\b",
            r"\bin a meeting\b", r"\bmake it short\b", r"\bno time\b",
        ),
        "says_yes": (
            r"\badd me\b(?! on)", r"\byou can add\b", r"\baccept your request\b",
            r"\bput in your request\b", r"\bhappy to (?:add|connect)\b", r"\blet's connect\b",
            r"(?<!not )(?<!n't )(?<!never )\bagree to connect\b",
            r"(?<!not )(?<!n't )(?<!never )(?<!did you )(?<!have you )"
            r"\bsend (?:me )?(?:the|a|your) request\b",
        ),
        "says_added": (
            r"\b(?:it's|is|been) added\b", r"\baccepted\b", r"\bon your list\b",
            r"\bon my list\b", r"\badded you\b",
        ),
        "says_no": (
            r"\bnot now\b", r"\bwon't add\b", r"\brather not\b", r"\bno need\b",
            r"\bstop asking\b", r"\bno means no\b", r"\bdon't ask\b", r"\bi said no\b",
            r"\bif need be\b", r"\bforget it\b", r"\bleave it\.", r"\bnever mind\b",
            r"\bi'm done\b", r"\bnot interested\b",
        ),
        "says_never": (
            r"\bwon't add\b", r"\bstop asking\b", r"\bno means no\b", r"\bdon't ask\b",
            r"\bi said no\b", r"\bstop calling\b",
        ),
        "says_bye": (
            r"\bbye\b", r"\bgoodbye\b", r"\bhanging up\b", r"\bi'm off\.", r"\bleave it there\b",
        ),
    },
}
"""How something is said; the names that begin with `says_` are a customer's."""

# fmt: on

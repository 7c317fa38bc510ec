"""The labels that a profile's attributes may have, in the wording of both languages.

Tables 5 to 7 of the paper name the attributes, and Table 7 and Table 16 the values of intent,
geography, personality and difficulty; the other values are ours.
"""

from __future__ import annotations

from ibrl_jax.domains.telesales.labels import Label


class IntentDepth(Label):
    """How much the customer means to buy; Table 16 calls `browsing` casual."""

    URGENT = "urgent", "急购", "urgent purchase"
    INTERESTED = "interested", "有兴趣", "interested"
    BROWSING = "browsing", "随便看看", "casual browsing"
    ACCIDENTAL = "accidental", "误留资", "accidental opt-in"


class Personality(Label):
    SKEPTICAL = "skeptical", "多疑"
    ANALYTICAL = "analytical", "爱分析"
    PASSIVE = "passive", "被动"
    FRIENDLY = "friendly", "随和"
    IMPATIENT = "impatient", "急躁"


class Remote(Label):
    """How far the car is from where the customer lives."""

    SAME_CITY = "same_city", "同城", "same city"
    SAME_PROVINCE = "same_province", "同省异城", "same province"
    CROSS_PROVINCE = "cross_province", "跨省", "cross-province"


class Difficulty(Label):
    """Found from the finished profile; never drawn."""

    EASY = "easy", "容易"
    MEDIUM = "medium", "中等"
    HARD = "hard", "困难"
    STRESS = "stress", "压力"


class HardFactor(Label):
    """What makes a profile hard, for the records."""

    LOW_WILLINGNESS = "low_willingness", "意愿低", "low willingness"
    LOW_TRUST = "low_trust", "信任低", "low trust"
    LOW_PATIENCE = "low_patience", "耐心低", "low patience"
    PRIVACY = "privacy", "隐私敏感", "sensitive about privacy"
    STRONG_CONCERNS = "strong_concerns", "顾虑强烈", "strong concerns"
    FAR = "far", "跨省", "cross-province"
    UNREACHABLE = "unreachable", "当前号码加不了", "current number cannot be added"


class Category(Label):
    """What a customer worries about and asks for; most have a field of the vehicle to answer."""

    PRICE = "price", "价格", "price"
    FEES = "fees", "费用", "fees"
    CONDITION = "condition", "车况", "condition"
    MILEAGE = "mileage", "里程", "mileage"
    WARRANTY = "warranty", "质保", "warranty"
    OWNERSHIP = "ownership", "过户记录", "previous owners"
    BATTERY = "battery", "电池", "battery"
    FINANCE = "finance", "贷款", "financing"
    AVAILABILITY = "availability", "是否在售", "availability"
    REMOTE = "remote", "异地流程", "out-of-town process"
    PRIVACY = "privacy", "隐私", "privacy"


class Gender(Label):
    MALE = "male", "男"
    FEMALE = "female", "女"


class AgeRange(Label):
    UNDER_25 = "20-24", "20–24岁", "20–24"
    FROM_25 = "25-30", "25–30岁", "25–30"
    FROM_31 = "31-35", "31–35岁", "31–35"
    FROM_36 = "36-45", "36–45岁", "36–45"
    FROM_46 = "46-60", "46–60岁", "46–60"


class CityTier(Label):
    FIRST = "first", "一线城市", "first tier"
    NEW_FIRST = "new_first", "新一线城市", "new first tier"
    SECOND = "second", "二线城市", "second tier"
    THIRD = "third", "三线城市", "third tier"


class Memory(Label):
    """What is left of the lead, or of where the car stands, in the customer's memory."""

    CLEAR = "clear", "记得清楚", "remembers clearly"
    VAGUE = "vague", "记得模糊", "remembers vaguely"
    NONE = "none", "不记得", "does not remember"


class Experience(Label):
    FIRST = "first", "首次购车", "first purchase"
    ADDITIONAL = "additional", "增购", "buys another car"
    REPLACEMENT = "replacement", "置换", "replaces a car"


class CarType(Label):
    SEDAN = "sedan", "轿车", "petrol sedan"
    SUV = "suv", "SUV", "petrol SUV"
    MPV = "mpv", "MPV", "petrol MPV"
    HYBRID = "hybrid", "插电混动车", "plug-in hybrid"
    EXTENDED = "extended", "增程SUV", "extended-range SUV"
    ELECTRIC = "electric", "纯电车", "electric car"


WITH_BATTERY = frozenset({CarType.HYBRID, CarType.EXTENDED, CarType.ELECTRIC})


class Timeline(Label):
    """When the customer means to buy."""

    WEEK = "week", "一周内", "within a week"
    MONTH = "month", "一个月内", "within a month"
    QUARTER = "quarter", "三个月内", "within three months"
    HALF_YEAR = "half_year", "半年内", "within half a year"
    NONE = "none", "暂无计划", "no plan"


class PrivacySensitivity(Label):
    LOW = "low", "低"
    MEDIUM = "medium", "中", "medium"
    HIGH = "high", "高"


class LeadStatus(Label):
    """By which action the lead came about."""

    PRICE_ENQUIRY = "price_enquiry", "询底价", "asked for the price"
    TRADE_IN = "trade_in", "旧车估价", "trade-in valuation"
    VIEWING = "viewing", "预约看车", "booked a viewing"
    FAVOURITE = "favourite", "收藏浏览", "saved a listing"
    MISTAKEN = "mistaken", "误点领券", "clicked a voucher by mistake"


class Recency(Label):
    TODAY = "today", "今天", "today"
    THIS_WEEK = "this_week", "这周", "this week"
    TWO_WEEKS = "two_weeks", "两周前", "two weeks ago"
    MONTH = "month", "一个月前", "a month ago"
    LONGER = "longer", "两三个月前", "two or three months ago"


class Signal(Label):
    CLEAR = "clear", "信号清晰", "clear line"
    MEDIOCRE = "mediocre", "信号一般", "mediocre line"
    POOR = "poor", "信号差", "poor line"


class Comprehension(Label):
    LOW = "low", "对二手车不熟", "knows little about used cars"
    MEDIUM = "medium", "对二手车懂一些", "knows a little about used cars"
    HIGH = "high", "对二手车比较懂行", "knows used cars well"


class Guidance(Label):
    """How much help with the steps of adding a contact the customer needs."""

    NONE = "none", "不用引导", "needs no guidance"
    SOME = "some", "需要提示", "needs a hint"
    STEPS = "steps", "需要一步步引导", "needs it step by step"


class Disfluency(Label):
    FLUENT = "fluent", "说话流畅", "speaks fluently"
    FILLERS = "fillers", "口头禅多", "uses many filler words"
    BROKEN = "broken", "断断续续", "speaks in broken sentences"


class CallTime(Label):
    MORNING = "morning", "上午", "in the morning"
    NOON = "noon", "午休时间", "at lunch time"
    AFTERNOON = "afternoon", "下午", "in the afternoon"
    EVENING = "evening", "晚上", "in the evening"


class Environment(Label):
    HOME = "home", "在家", "at home"
    OFFICE = "office", "在办公室", "at the office"
    DRIVING = "driving", "在开车", "driving"
    STREET = "street", "在路上", "out in the street"
    MEETING = "meeting", "在开会间隙", "between two meetings"


class WechatPrivacy(Label):
    """Whether the customer's WeChat account can be found by the phone number."""

    SEARCHABLE = "searchable", "可通过手机号搜索", "can be found by phone number"
    HIDDEN = "hidden", "已关闭手机号搜索", "cannot be found by phone number"


class PrimaryAccount(Label):
    THIS_PHONE = "this_phone", "主用微信绑定本号", "main account belongs to this number"
    OTHER_PHONE = "other_phone", "主用微信绑定别的号", "main account belongs to another number"


class VehicleCondition(Label):
    """The conclusion about accidents, flood and fire."""

    CLEAN = "clean", "无事故、无水泡、无火烧", "no accident, flood or fire"
    MINOR = "minor", "有轻微剐蹭、无结构损伤", "light scratches, no structural damage"
    REPAIRED = "repaired", "有过碰撞维修记录", "repaired after a collision"


class Availability(Label):
    ON_SALE = "on_sale", "在售", "on sale"
    RESERVED = "reserved", "已被预订", "reserved"
    SOLD = "sold", "已售出", "sold"


class Scene(Label):
    """The scenes that a story has spoken examples for (Table 8)."""

    PICKUP = "passive pickup", "被动接听"
    MEMORY = "lead or vehicle memory", "线索或车辆记忆"
    SHORT_ANSWERS = "cooperative short answers", "配合的短回答"
    CONCERNS = "core concerns", "核心顾虑"
    PRICE = "price and fees", "价格与费用"
    CONDITION = "condition and documents", "车况与材料"
    CONTACT = "contact boundaries", "联系方式边界"
    ENDING = "ending the call", "结束通话"

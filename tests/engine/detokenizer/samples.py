"""Texts that detokenizers get wrong: scripts, joiners, flags, marks, code, runs of spaces, a real U+FFFD.

Never more than a line each: they are cut at every place.
"""

TEXTS = (
    "Hello, world! It's 3.14 o'clock; don't you think so?",
    "  two leading spaces, a\ttab,\n\n  newlines    and runs   of spaces  ",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "မင်္ဂလာပါ ကမ္ဘာလောက",
    "नमस्ते दुनिया, क्षत्रिय ज्ञान",
    "مرحبا بالعالم، ١٢٣ كيف الحال؟",
    "안녕하세요 세계, 한국어 띄어쓰기",
    "こんにちは世界。漢字とカナ、𠮷野家",
    "你好，世界！龘靐齉 繁體字",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇺🇦🇯🇵 ❤️‍🔥 1️⃣",
    "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343 \u200f\u200e\u2060",
    "def f(x: int) -> str:\n    return f'{x!r:>{10}}'  # λ → ∀∃\n",
    "aGVsbG8gd29ybGQh+/==0xDEADBEEF",
    "a real \ufffd in the text, and \ufffd\ufffd two",
    "\x00\x01\x7f\x80\xa0\xad\u2028\ufeff",
    "ЁжИк Ёлка Ω≈ç√∫ ñandú façade naïve",
    "𒀀𒁀 \U0010fffd 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ＦＵＬＬ",
    "<think>not a token</think> <|im_start|>user <0x41> ▁x ##y Ġz",
)

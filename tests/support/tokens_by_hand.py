"""The text of tokens and their classes, written by hand; items of a class are separated by spaces."""

STOPS = ". 。 ． ｡ । ॥ ۔ ። ። ։ ။"
COMMAS = ", ， 、 ､ ، ՝ ፣ ߸ ᠂ ﹐ ﹑"
SINGLE = {
    "sentence_final": f"{STOPS} ? ! ？ ！ ؟ ‼ ⁇ ⁈ ‽ ﹖ ﹗",
    "comma_like": COMMAS,
    "punctuation": "; : ； ： ' \" ( ) [ ] { } - – — … ‥ ・ 「 」 『 』 （ ） 【 】 〈 〉 《 》 〜 "
    "“ ” ‘ ’ « » ¿ ¡ / & * # % @ _ · ؛ ־",
    "symbols": "+ < > = | ^ ` $ ¥ € £ © ° ± × ÷ → ← ★ ☆ ○ ● △ ■ ♪ ✓ 🙂 ～ ￥ ＋ ＝ ∞ √ ≠",
    "digits": "0 1 2 3 7 9 ０ １ ９ ① Ⅳ ½ ² ٣ ४ 〇",
    "latin": "a b m x A Q Z é ñ ß ø Ａ ｂ ə",
    "greek": "α β Ω",
    "cyrillic": "ж и Я",
    "han": "水 猫 々 的 爱 日 三 私 山 食 雨 國 龍",
    "hiragana": "あ し は の を っ ん が で ゐ ぁ ゞ",
    "katakana": "ア カ ヴ ー ｱ ッ ン ヶ ヽ",
    "hangul": "가 나 는",
    "arabic": "ب و س",
    "hebrew": "ש ל",
    "devanagari": "क है",
    "thai": "ก",
    "bengali": "ব",
    "tamil": "த",
    "georgian": "ქ",
    "armenian": "Հ",
    "ethiopic": "አ",
    "letters": "Ꮳ",
}
"""One character as people count them (है is two code points)."""

SEVERAL = {
    "sentence_final": "... !! ?? ?! ！？ 。。",
    "comma_like": ",, 、、",
    "punctuation": '。」 .) ), ", …。 ?" ...) -- …… ("',
    "symbols": "== <= +- ❤️ ->",
    "digits": "42 2024 ２０ 3.14 1, 10% ٣٤",
    "latin": "the Cat ing 's n't naïve e.g. U.S. iPhone 3rd don't",
    "greek": "λόγος",
    "cyrillic": "мир Россия",
    "han": "日本 東京 人々 漢字 2024年",
    "hiragana": "です ます こと ました",
    "katakana": "コーヒー テレビ",
    "hangul": "한국 입니다",
    "arabic": "سلام كتاب",
    "hebrew": "שלום",
    "devanagari": "नमस्ते",
    "thai": "ที่",
    "mixed": "食べる 行った 女の子 Tシャツ らーメン",
}
"""Several characters."""

SPACE = (" ", "  ", "\n", "\n\n", "\t", "\u3000", "\u00a0", "\r\n")


def rows() -> dict[str, str]:
    """The class of each token text."""
    found = {item: name for table in (SINGLE, SEVERAL) for name, items in table.items() for item in items.split()}
    return found | dict.fromkeys(SPACE, "space")


COMMA_PERIOD = frozenset((STOPS + " " + COMMAS).split())
"""The texts of the class `comma_period`, with spaces around them or not, and nothing else."""

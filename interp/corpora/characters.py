"""The kind of text that a token contains, by the Unicode properties of its characters."""

import unicodedata
from functools import cache

import regex

__all__ = ["SCRIPTS", "UNICODE_CLASSES", "is_comma_or_period", "unicode_class"]

SCRIPTS = (
    "latin", "greek", "cyrillic", "han", "hiragana", "katakana", "hangul", "bopomofo", "arabic", "hebrew", "devanagari",
    "bengali", "gurmukhi", "gujarati", "oriya", "tamil", "telugu", "kannada", "malayalam", "sinhala", "thai", "lao",
    "khmer", "myanmar", "tibetan", "georgian", "armenian", "ethiopic", "mongolian",
)  # fmt: skip
"""The scripts whose letters have their own class."""

UNICODE_CLASSES = (
    "sentence_final", "comma_like", "punctuation", "symbols", "digits", "space", *SCRIPTS, "mixed", "letters",
)  # fmt: skip
"""The classes that `unicode_class` distinguishes."""

_SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
_SHARED = regex.compile(r"[\p{Script=Common}\p{Script=Inherited}]")
_KANA = regex.compile(r"\p{Script_Extensions=Katakana}")
_ENDS = regex.compile(r"\p{Sentence_Terminal}")


@cache
def _script(character: str) -> str | None:
    """The script of a letter or mark, `letters` if that script has no class, and None if several scripts share it."""
    if _SHARED.match(character):
        return None
    match = _SCRIPT.match(character)
    return str(match.lastgroup) if match else "letters"


def unicode_class(text: str) -> str:
    """Return the kind of a text, one of `UNICODE_CLASSES`. Spaces count only if there is nothing else.

    A text with letters (Unicode's categories L and M) has the class of their script: `latin`, `han`, `hiragana` …,
    `letters` for scripts without a class, or `mixed` for several scripts. Otherwise a text with numbers is `digits`.
    Other texts are `sentence_final` if every character can end a sentence (Unicode's property Sentence_Terminal: `.`,
    `?`, `!`, `。`, `．`, `।`, `؟` …), `comma_like` if every character is called a comma (`,`, `、`, `，`, `،` …), and
    `punctuation` if every character is of category P. Anything else is `symbols`, or `space` if there are only spaces.

    Examples:
        >>> [unicode_class(text) for text in ("。", " ,", "」", "食べる", "です", " the", "2024")]
        ['sentence_final', 'comma_like', 'punctuation', 'mixed', 'hiragana', 'latin', 'digits']
    """
    characters = "".join(text.split())
    kinds = {unicodedata.category(character)[0] for character in characters}
    letters = [character for character in characters if unicodedata.category(character)[0] in "LM"]
    scripts = set(filter(None, map(_script, letters)))
    if scripts:
        return scripts.pop() if len(scripts) == 1 else "mixed"
    if "L" in kinds:
        return "katakana" if all(map(_KANA.match, letters)) else "letters"  # ー by itself
    classes = {
        "space": not characters,
        "digits": "N" in kinds,
        "sentence_final": all(map(_ENDS.match, characters)),
        "comma_like": all(map(_is_comma, characters)),
        "punctuation": kinds == {"P"},
    }
    for name, holds in classes.items():
        if holds:
            return name
    return "symbols"


def is_comma_or_period(text: str) -> bool:
    """Whether a text is one comma or one period of any script, possibly with spaces around it: a character that is
    `comma_like`, or `sentence_final` but not a question or exclamation mark.

    Examples:
        >>> [is_comma_or_period(text) for text in (" ,", "。", "।", "?", "...")]
        [True, True, True, False, False]
    """
    character = text.strip()
    if len(character) != 1:
        return False
    name = unicodedata.name(character, "")
    asks_or_exclaims = any(word in name for word in ("QUESTION", "EXCLAMATION", "INTERROBANG"))
    return _is_comma(character) or (bool(_ENDS.match(character)) and not asks_or_exclaims)


def _is_comma(character: str) -> bool:
    name = unicodedata.name(character, "")
    return unicodedata.category(character)[0] == "P" and "COMMA" in name and "QUOTATION" not in name

"""Light stemming and stop words of English and German.

Deliberately light: it joins plural and singular and common endings, and leaves the rest alone. English follows the
"S stemmer" (D. Harman, How effective is suffixing?, 1991) with -ing and -ed; German follows J. Savoy's light stemmer.
Stems are stored: other rules need an index built anew.
"""

from __future__ import annotations

from functools import lru_cache

_MIN_STEM = 3
_STOP_WORDS = (
    "a an and are as at be been but by can could did do does for from had has have how i if in into is it its me "
    "my no not of on or our should so than that the their them then there these they this to was we were what "
    "when where which who why will with would you your aber als am an auch auf aus bei bin bis da damit dann das "
    "dass dein dem den der des die dies diese dieser doch du durch ein eine einem einen einer eines er es fur hat "
    "haben ich ihr im in ist kann kein keine man mein mich mir mit nach nicht noch nur oder sein sich sie sind so "
    "soll uber um und uns unser vom von vor wann warum was wenn wer werden wie wir wird wo zu zum zur "
)
STOP_WORDS = frozenset(_STOP_WORDS.split())


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a folded word."""
    if not word.isascii() or not word.isalpha() or len(word) <= _MIN_STEM:
        return word
    return _without_ending(_without_plural(word))


def _without_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_ending(word: str) -> str:
    for ending in ("ing", "ed", "en", "ern", "em", "er", "es", "e", "ly"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= _MIN_STEM and any(vowel in rest for vowel in "aeiouy"):
            if len(rest) > _MIN_STEM and rest[-1] == rest[-2] and rest[-1] not in "lsz":
                rest = rest[:-1]  # stopping, planned
            return rest
    return word

"""The templates of the bundled minimal pairs (`bundled/lexicon.json`), and how pairs are drawn from them."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from interp.support.paths import BUNDLED

__all__ = ["LEXICON", "TASKS", "Template", "draw", "drawn", "entries", "shuffled", "templates_of"]

LEXICON: dict[str, Any] = json.loads((BUNDLED / "lexicon.json").read_text(encoding="utf-8"))

TASKS: tuple[str, ...] = tuple(LEXICON["tasks"])
"""The names of the bundled tasks. `bundled/lexicon.json` says what each of them tests."""


@cache
def entries(group: str) -> tuple[str, ...]:
    """Return the words that can stand in one place: those of a group, or of all groups that it unites."""
    words = LEXICON["words"][group]
    return tuple(words["entries"]) if "entries" in words else sum(map(entries, words["union"]), ())


def _form(group: str, entry: str, name: str | None) -> str:
    """One form of an entry (for nouns: sg, pl). The first form of "is/are here" is "is here", the second "are here"."""
    index = LEXICON["words"][group]["forms"].index(name) if name else 0
    return " ".join(word.split("/")[index] if "/" in word else word for word in entry.split(" "))


class Template:
    """A numbered list of pairs, written as `The {person.sg} [is|are] {place}.`

    `{group.form}` is a word. `{person1}` and `{person2}` are two different words of one group, and `{person1}` is the
    same word each time. The two sentences differ at `[good|bad]`.
    """

    _slot = re.compile(r"\{([a-z_]+)(\d?)(?:\.(\w+))?\}")
    _contrast = re.compile(r"\[([^|\]]*)\|([^|\]]*)\]")

    def __init__(self, text: str) -> None:
        self.text = text
        self.slots = tuple(dict.fromkeys((m[1], m[2]) for m in self._slot.finditer(text)))
        self.n_pairs = 1
        groups: list[str] = []
        for group, _ in self.slots:
            self.n_pairs *= len(entries(group)) - groups.count(group)
            groups.append(group)

    def chosen(self, number: int) -> dict[tuple[str, str], str]:
        """Return the entry in each slot of the pair with this number, 0 to n_pairs - 1."""
        chosen: dict[tuple[str, str], str] = {}
        for slot in self.slots:
            used = [entry for (group, _), entry in chosen.items() if group == slot[0]]
            free = [entry for entry in entries(slot[0]) if entry not in used]
            number, index = divmod(number, len(free))
            chosen[slot] = free[index]
        return chosen

    def pair(self, number: int) -> tuple[str, str]:
        """Return the good and the bad sentence with this number."""
        chosen = self.chosen(number)
        filled = self._slot.sub(lambda m: _form(m[1], chosen[m[1], m[2]], m[3]), self.text)
        return self._contrast.sub(r"\1", filled), self._contrast.sub(r"\2", filled)


def shuffled(n: int, rng: random.Random) -> Iterator[int]:
    """Yield 0 … n-1 in random order, lazily (Fisher and Yates, storing only the places that were swapped).

    It draws only with `rng.random()`, the one method whose sequence Python promises not to change.
    """
    moved: dict[int, int] = {}
    for i in range(n):
        j = i + int(rng.random() * (n - i))
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)


def draw(templates: Sequence[Template], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield all pairs of a task in random order. Templates alternate, so that every stretch is balanced."""
    numbers = {template: shuffled(template.n_pairs, rng) for template in templates}
    while numbers:
        turn = list(numbers)
        for index in shuffled(len(turn), rng):
            number = next(numbers[turn[index]], None)
            if number is None:
                del numbers[turn[index]]
            else:
                yield turn[index].pair(number)


def templates_of(task: str) -> list[Template]:
    """Return the templates of a bundled task."""
    return list(map(Template, LEXICON["tasks"][task]["templates"]))


def drawn(task: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield all pairs of a bundled task in the order of a seed."""
    return draw(templates_of(task), random.Random(f"{seed}-{task}"))

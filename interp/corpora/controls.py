"""Control tasks for minimal pairs: the same sentences, whose difference is no grammar.

In a control pair both sentences are right, and differ in one word (a name, where there is one) of the same kind. Which
of the two is called good depends on the word alone, by a random half of all words that can stand there. So there is a
distinction to be found, as consistent as a grammatical one and between sentences of the same form, that means nothing.

Source: Hewitt and Liang, "Designing and Interpreting Probes with Control Tasks", EMNLP 2019, who give word types random
labels.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from pandas import DataFrame

from interp.corpora.pairs import _LEXICON, COLUMNS, TASKS, _draw, _entries, _known_tasks, _shuffled, _Template

__all__ = ["swapped"]

_NAMES = ("name", "male_name", "female_name")
_OTHER = "9"  # no template numbers its words so high


def swapped(tasks: Sequence[str], *, n_per_task: int = 500, seed: int = 0) -> DataFrame:
    """Control pairs of bundled tasks: the good sentences of each, with one word swapped for another.

    A table like that of `interp.corpora.pairs.generate`, under the names of the tasks. Which words are called good is
    drawn anew for each task.

    Raises ValueError for a task that has no templates (only the bundled ones do), an `n_per_task` below 1 or above what
    the templates can make.

    Examples:
        >>> table = swapped(["determiner_noun"], n_per_task=1)
        >>> table[["sentence_good", "sentence_bad"]].iloc[0].tolist()
        ['Arthur carried away this letter in the morning.', 'Susan carried away this letter in the morning.']
    """
    if n_per_task < 1:
        raise ValueError(f"n_per_task is {n_per_task}; it must be at least 1")
    rows: list[tuple[str, ...]] = []
    for task in _known_tasks(tasks, TASKS, "the bundled generator, which alone can make a control of a task"):
        entry, drawn = _LEXICON["tasks"][task], random.Random(f"{seed}-{task}-control")
        halves: dict[str, frozenset[str]] = {}
        templates = [_Swapped(text, halves, drawn) for text in entry["templates"]]
        made = list(islice(_different(templates, drawn), n_per_task))
        if len(made) < n_per_task:
            found = f"n_per_task is {n_per_task}, but a control of {task!r} has {len(made)} different pairs"
            raise ValueError(f"{found}; ask for {len(made)} or fewer, or leave the task out")
        about = (entry["field"], entry["linguistics_term"])
        rows += [(*pair, task, str(number), *about) for number, pair in enumerate(made)]
    return DataFrame(rows, columns=list(COLUMNS))


def _different(templates: Sequence["_Swapped"], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Those pairs whose two words are of different halves."""
    return (pair for pair in _draw(templates, rng) if pair[0] != pair[1])


class _Swapped(_Template):
    """The good sentences of a template, with one word and with another in its place.

    Args:
        text: the template.
        halves: of the words of a group those that are called good, filled as groups are met.
        rng: draws them.
    """

    def __init__(self, text: str, halves: dict[str, frozenset[str]], rng: random.Random) -> None:
        good = self._contrast.sub(r"\1", text)
        slots = [(m[1], m[2]) for m in self._slot.finditer(good)]
        self.one = next((slot for slot in slots if slot[0] in _NAMES), slots[0])
        group = self.one[0]
        words = _entries(group)
        if group not in halves:
            halves[group] = frozenset(words[i] for i in islice(_shuffled(len(words), rng), len(words) // 2))
        self.good_words = halves[group]

        def both(match: re.Match[str]) -> str:
            form = f".{match[3]}" if match[3] else ""
            return f"[{match[0]}|{{{group}{_OTHER}{form}}}]" if (match[1], match[2]) == self.one else match[0]

        super().__init__(self._slot.sub(both, good))

    def pair(self, number: int) -> tuple[str, str]:
        """The sentence with a word of the good half, and with one of the other; the same twice where both words are of
        one half."""
        chosen, (one, other) = self.chosen(number), super().pair(number)
        is_good = [chosen[slot] in self.good_words for slot in (self.one, (self.one[0], _OTHER))]
        if is_good[0] == is_good[1]:
            return one, one
        return (one, other) if is_good[0] else (other, one)

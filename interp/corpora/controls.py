"""Control tasks for minimal pairs: the same sentences, whose difference is no grammar.

In a control pair both sentences are right, and differ in one word (a name, where there is one) of the same kind, or in
a number: "In chapter two, …" and "In chapter nine, …". Which of the two is called good depends on that word alone, by a
random half of all words that can stand there. So there is a distinction to be found, as consistent as a grammatical one
and between sentences of the same form, that means nothing.

Source: Hewitt and Liang, "Designing and Interpreting Probes with Control Tasks", EMNLP 2019, who give word types random
labels.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias, get_args

from pandas import DataFrame

from interp.checks import check_choice
from interp.corpora.pairs import _LEXICON, COLUMNS, TASKS, _draw, _entries, _known_tasks, _shuffled, _Template

__all__ = ["Swap", "swapped"]

Swap: TypeAlias = Literal["words", "numbers"]
_CHOSEN = ("numeral", "name", "male_name", "female_name")  # what is swapped where there is one
_DRAWN: dict[Swap, str] = {"words": "control", "numbers": "control-numbers"}
_OTHER = "9"  # no template numbers its words so high


def swapped(tasks: Sequence[str], *, swap: Swap = "words", n_per_task: int = 500, seed: int = 0) -> DataFrame:
    """Control pairs of bundled tasks: the good sentences of each, with one word swapped for another, or one number.

    A table like that of `interp.corpora.pairs.generate`, under the names of the tasks. Which words are called good is
    drawn anew for each task.

    Args:
        tasks: names of bundled tasks.
        swap: `"words"`, a name where there is one; or `"numbers"`, in "In chapter …," put before the sentence.
        n_per_task: pairs of each.
        seed: of what is drawn.

    Raises ValueError for a task that has no templates (only the bundled ones do), another `swap`, an `n_per_task` below
    1 or above what the templates can make.

    Examples:
        >>> table = swapped(["determiner_noun"], n_per_task=1)
        >>> table[["sentence_good", "sentence_bad"]].iloc[0].tolist()
        ['Arthur carried away this letter in the morning.', 'Susan carried away this letter in the morning.']
        >>> swapped(["determiner_noun"], swap="numbers", n_per_task=1)["sentence_good"].item()
        'In chapter twenty, Susan sent back that map in the evening.'
    """
    check_choice("swap", swap, get_args(Swap))
    if n_per_task < 1:
        raise ValueError(f"n_per_task is {n_per_task}; it must be at least 1")
    rows: list[tuple[str, ...]] = []
    for task in _known_tasks(tasks, TASKS, "the bundled generator, which alone can make a control of a task"):
        entry, drawn = _LEXICON["tasks"][task], random.Random(f"{seed}-{task}-{_DRAWN[swap]}")
        halves: dict[str, frozenset[str]] = {}
        templates = [_Swapped(_good(text, swap), halves, drawn) for text in entry["templates"]]
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


def _good(text: str, swap: Swap) -> str:
    """The template of the good sentences alone, after a number where numbers are swapped."""
    good = _Template._contrast.sub(r"\1", text)
    return good if swap == "words" else f"In chapter {{numeral}}, {good[0].lower()}{good[1:]}"


class _Swapped(_Template):
    """Sentences with one word and with another in its place.

    Args:
        good: the template of sentences.
        halves: of the words of a group those that are called good, filled as groups are met.
        rng: draws them.
    """

    def __init__(self, good: str, halves: dict[str, frozenset[str]], rng: random.Random) -> None:
        slots = [(m[1], m[2]) for m in self._slot.finditer(good)]
        self.one = next((slot for slot in slots if slot[0] in _CHOSEN), slots[0])
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

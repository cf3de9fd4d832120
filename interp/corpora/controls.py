"""Control tasks for minimal pairs: the same sentences, with a difference that is not grammatical.

In a control pair both sentences are correct. They differ in one word of the same kind (a name, if there is one), or in
a number: "In chapter two, …" and "In chapter nine, …". Which sentence is called good depends only on that word: a
random half of the words that can stand there are good. So probes can find a distinction that is as consistent as a
grammatical one, between sentences of the same form, but has no meaning.

Source: Hewitt and Liang, "Designing and Interpreting Probes with Control Tasks", EMNLP 2019, who give random labels to
word types.
"""

import random
import re
from collections.abc import Sequence
from itertools import islice
from typing import Literal, TypeAlias, get_args

from pandas import DataFrame, concat

from interp.corpora.pairs import COLUMNS, bundled_tasks, known_tasks
from interp.corpora.templates import LEXICON, TASKS, Template, draw, entries, shuffled
from interp.support.checks import check_choice, whole_number

__all__ = ["Swap", "controls_of", "swapped"]

Swap: TypeAlias = Literal["words", "numbers"]
_CHOSEN = ("numeral", "name", "male_name", "female_name")  # the words to swap, if a template has one of these
_DRAWN: dict[Swap, str] = {"words": "control", "numbers": "control-numbers"}
_OTHER = "9"  # no template has a word with this number


def swapped(tasks: Sequence[str], *, swap: Swap = "words", n_per_task: int = 500) -> DataFrame:
    """Make control pairs for bundled tasks: the good sentences of each task, with one word or one number swapped.

    Returns a table like that of `interp.corpora.pairs.generate`, with the names of the tasks. Which words are called
    good is drawn separately for each task.

    Args:
        tasks: names of bundled tasks.
        swap: `"words"` swaps a word (a name, if there is one), and `"numbers"` swaps the number in "In chapter …,",
            which is put before the sentence.
        n_per_task: the number of pairs per task.

    Raises ValueError for a task without templates (only bundled tasks have them), for another `swap`, and for an
    `n_per_task` below 1 or above what the templates can make.

    Examples:
        >>> table = swapped(["determiner_noun"], n_per_task=1)
        >>> table[["sentence_good", "sentence_bad"]].iloc[0].tolist()
        ['Arthur carried away this letter in the morning.', 'Susan carried away this letter in the morning.']
        >>> swapped(["determiner_noun"], swap="numbers", n_per_task=1)["sentence_good"].item()
        'In chapter twenty, Susan sent back that map in the evening.'
    """
    check_choice("swap", swap, get_args(Swap))
    n_per_task = whole_number(n_per_task, "n_per_task", least=1)
    rows: list[tuple[str, ...]] = []
    for task in known_tasks(tasks, TASKS, "the bundled generator, the only one that can make controls"):
        entry = LEXICON["tasks"][task]
        rng = random.Random(f"0-{task}-{_DRAWN[swap]}")
        halves: dict[str, frozenset[str]] = {}
        templates = [_Swapped(_good_half(text, swap), halves, rng) for text in entry["templates"]]
        different = (pair for pair in draw(templates, rng) if pair[0] != pair[1])
        pairs = list(islice(different, n_per_task))
        if len(pairs) < n_per_task:
            problem = f"n_per_task is {n_per_task}, but a control of {task!r} has {len(pairs)} different pairs"
            raise ValueError(f"{problem}; ask for {len(pairs)} or fewer, or leave the task out")
        for number, pair in enumerate(pairs):
            rows.append((*pair, task, str(number), entry["field"], entry["linguistics_term"]))
    return DataFrame(rows, columns=list(COLUMNS))


def controls_of(pairs: DataFrame) -> dict[Swap, DataFrame]:
    """Make control pairs of both kinds for the pairs of a table, as many for each task as the largest has; none unless
    the sentences of all tasks, under whatever name, are bundled ones (`interp.corpora.pairs.bundled_tasks`).

    Examples:
        >>> from interp.corpora.pairs import generate
        >>> own = generate(n_per_task=2, tasks=["causative"]).assign(UID="mine")
        >>> {swap: table["UID"].tolist() for swap, table in controls_of(own).items()}
        {'words': ['mine', 'mine'], 'numbers': ['mine', 'mine']}
    """
    bundled = bundled_tasks(pairs)
    sizes = pairs.groupby("UID").size()
    if len(bundled) < len(sizes):
        return {}
    n = int(sizes.max())
    controls = {}
    for swap in get_args(Swap):
        tables = [swapped([task], swap=swap, n_per_task=n).assign(UID=uid) for uid, task in bundled.items()]
        controls[swap] = concat(tables)
    return controls


def _good_half(text: str, swap: Swap) -> str:
    """The template of the good sentences only, preceded by a number if numbers are swapped."""
    good = Template._contrast.sub(r"\1", text)
    return good if swap == "words" else f"In chapter {{numeral}}, {good[0].lower()}{good[1:]}"


class _Swapped(Template):
    """Pairs of sentences that differ in one word.

    Args:
        good: the template of the sentences.
        halves: for each group, the words that are called good. It is filled as groups are encountered.
        rng: the generator that draws them.
    """

    def __init__(self, good: str, halves: dict[str, frozenset[str]], rng: random.Random) -> None:
        slots = [(m[1], m[2]) for m in self._slot.finditer(good)]
        chosen = [slot for slot in slots if slot[0] in _CHOSEN]
        self.one = (chosen or slots)[0]
        group = self.one[0]
        words = entries(group)
        if group not in halves:
            halves[group] = frozenset(words[i] for i in islice(shuffled(len(words), rng), len(words) // 2))
        self.good_words = halves[group]

        def both(match: re.Match[str]) -> str:
            form = f".{match[3]}" if match[3] else ""
            return f"[{match[0]}|{{{group}{_OTHER}{form}}}]" if (match[1], match[2]) == self.one else match[0]

        super().__init__(self._slot.sub(both, good))

    def pair(self, number: int) -> tuple[str, str]:
        """Return the sentence with a word of the good half, and with a word of the other half. If both words are in the
        same half, the two sentences are equal."""
        chosen = self.chosen(number)
        (first, second) = super().pair(number)
        first_is_good = chosen[self.one] in self.good_words
        if first_is_good == (chosen[self.one[0], _OTHER] in self.good_words):
            return first, first
        return (first, second) if first_is_good else (second, first)

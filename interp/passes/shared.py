"""Equal observers are filled once, so that an analysis can ask for what it needs as if it were alone.

Two observers are equal if they are of the same class and their options, state names, shapes, reductions and devices are
exactly the same. Then each adds the same to its states, and one of them gets a copy of what the other has read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from interp.corpora import Batches
from interp.models.running import active_hooks
from interp.models.sites import Model
from interp.passes.observers import Observer

__all__ = ["MOST_BYTES", "Filled", "Plan", "plan", "remember"]

MOST_BYTES = 2**26
"""States larger than this are not kept for a later pass, which reads them again."""

_Key: TypeAlias = tuple[Any, ...]


class Filled(NamedTuple):
    """The states of an observer after a pass, and what an equal observer has in common with it."""

    settings: dict[str, Any]
    key: _Key
    state: dict[str, Tensor]


class Plan(NamedTuple):
    """Which observers of a pass have to read, and from where each of the others gets a copy of its states."""

    reading: list[Observer]
    copies: list[tuple[Observer, Observer | Filled]]

    def copy(self) -> None:
        """Give the others their states."""
        for observer, source in self.copies:
            observer.state = {name: value.clone() for name, value in source.state.items()}


def plan(model: Model, batches: Batches, observers: Sequence[Observer], filled: Sequence[Filled] = ()) -> Plan:
    """Decide which observers have to read, from their options and the settings of the batches alone, so that it is the
    same in every process and when a run is resumed.

    While hooks are active on the model, which no option describes, all of them read; and so do observers that already
    hold data.

    Args:
        filled: what earlier passes have read.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.instruments.logits import SiteMean
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> means = [SiteMean(model, "head_input", width=16) for _ in range(3)]
        >>> asked = plan(model, batches(model, ["w0 w1 w2"] * 20), means)
        >>> len(asked.reading), len(asked.copies)
        (1, 2)
    """
    if active_hooks(model):
        return Plan(list(observers), [])
    sources: list[tuple[_Key, Observer | Filled]] = []
    for record in filled:
        if record.settings == batches.settings:
            sources.append((record.key, record))
    reading: list[Observer] = []
    copies: list[tuple[Observer, Observer | Filled]] = []
    for observer in observers:
        key = _key(observer)
        source = next((source for source_key, source in sources if source_key == key), None)
        if source is None or source is observer or not observer.is_empty:
            reading.append(observer)
            sources.append((key, observer))
        else:
            copies.append((observer, source))
    return Plan(reading, copies)


def remember(batches: Batches, observers: Sequence[Observer]) -> list[Filled]:
    """Return what a later pass may use of these observers, which were filled from these batches."""
    records = []
    for observer in observers:
        if sum(value.nbytes for value in observer.state.values()) <= MOST_BYTES:
            records.append(Filled(batches.settings, _key(observer), dict(observer.state)))
    return records


def _key(observer: Observer) -> _Key:
    states = {name: (value.shape, observer.reductions[name]) for name, value in observer.state.items()}
    return type(observer), observer.options, states, observer.device

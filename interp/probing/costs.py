"""What probing a model costs, from its config and the pairs alone."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from interp.corpora import pairs
from interp.models.shapes import shape
from interp.probing.options import STEPS, ProbingOptions

_TRAIN = 0.6
_TIMED_SIZE = 1_024


@dataclass(frozen=True)
class Cost:
    """Bytes of hidden states, and floating-point operations (a multiplication and an addition are two).

    Of the trained and the untrained model. `forward` are the blocks' matrix products for all sentences; `sparse` those
    of the L0 probes, `4 N d` a step and column (N training sentences); `columns` are λ, seeds and controls. What is
    done at one state alone (transfer, general probes, ablation) is not counted.
    """

    n_states: int
    d_model: int
    n_tasks: int
    n_sentences: int
    n_tokens: int
    columns: int
    states_bytes: int
    one_state_bytes: int
    forward: float
    sparse: float

    @property
    def numbers(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """What `--dry-run` prints, with the time that this machine's arithmetic makes of it."""
        speed = rate()
        return [
            f"{self.n_states} states of {self.d_model}; {self.n_tasks} tasks, {self.n_sentences:,} sentences, about "
            f"{self.n_tokens:,} tokens",
            f"hidden states: {self.states_bytes / 2**30:,.2f} GiB on disk, {self.one_state_bytes / 2**30:,.2f} GiB in "
            "memory",
            f"forward passes: {self.forward / 1e12:,.1f} TFLOP",
            f"L0 probes, {self.columns:,} a state: {self.sparse / 1e12:,.1f} TFLOP",
            f"a float32 matrix product runs at {speed / 1e9:,.0f} GFLOP/s here: "
            f"{self.forward / speed / 3600:,.1f} h and {self.sparse / speed / 3600:,.1f} h at that rate",
        ]


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.probing.study` with these options."""
    if data is None:
        raise ValueError("--pairs is missing; expected minimal pairs, which say how many sentences there are")
    asked = ProbingOptions(**{key: value for key, value in options.items() if not callable(value)})
    table = pairs.load(data, tasks=asked.tasks, limit=asked.limit)
    columns = len(asked.l0_strengths) * len(asked.controls) * len(asked.seeds) if "l0" in asked.methods else 0
    return cost(
        name, [*table["sentence_good"], *table["sentence_bad"]], n_tasks=table["UID"].nunique(), columns=columns,
        n_states=None if asked.states is None else len(asked.states), steps=asked.steps,
    )  # fmt: skip


def cost(
    name: str, sentences: Sequence[str], *, n_tasks: int, columns: int, n_states: int | None = None, steps: int = STEPS
) -> Cost:
    """The cost of `collect` and of the L0 probes of `sweep`.

    Tokens are reckoned at 4/3 of the words, and one appended.

    Args:
        sentences: all of the pairs, good and bad.
        columns: sparse probes a task and state; one more is of the untrained model.
        n_states: how many; all by default.

    Raises as `interp.models.shapes.shape`.
    """
    size = shape(name)
    n_states = size.n_layers + 1 if n_states is None else n_states
    tokens = sum(round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences)
    one = 4 * len(sentences) * size.d_model
    return Cost(
        n_states=n_states,
        d_model=size.d_model,
        n_tasks=n_tasks,
        n_sentences=len(sentences),
        n_tokens=tokens,
        columns=n_tasks * (columns + bool(columns)),
        states_bytes=2 * n_states * one,
        one_state_bytes=one,
        forward=2 * tokens * size.forward,
        sparse=4.0 * _TRAIN * len(sentences) * size.d_model * (columns + bool(columns)) * steps * n_states,
    )


def rate() -> float:
    """Floating-point operations a second of a float32 matrix product of 1,024³ here, on the GPU if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a = torch.randn(_TIMED_SIZE, _TIMED_SIZE, device=device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        float((a @ a)[0, 0])
        times.append(time.perf_counter() - start)
    return float(2 * _TIMED_SIZE**3 / min(times))

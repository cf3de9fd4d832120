"""What probing a model costs, from its config and the pairs alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from interp.models.shapes import shape
from interp.probing.fitting import STEPS

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
    n_tokens: int
    columns: int
    states_bytes: int
    one_state_bytes: int
    forward: float
    sparse: float


def cost(
    name: str, sentences: Sequence[str], *, n_tasks: int, columns: int, n_layers: int | None = None, steps: int = STEPS
) -> Cost:
    """The cost of `collect` and of the L0 probes of `sweep`.

    Tokens are reckoned at 4/3 of the words, and one appended.

    Args:
        sentences: all of the pairs, good and bad.
        columns: sparse probes a task and state; one more is of the untrained model.
        n_layers: how many states; all by default.

    Raises as `interp.models.shapes.shape`.
    """
    size = shape(name)
    n_states = size.n_layers + 1 if n_layers is None else n_layers
    tokens = sum(round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences)
    one = 4 * len(sentences) * size.d_model
    return Cost(
        n_states=n_states,
        d_model=size.d_model,
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

"""A fitted probe on a model: its score at every token, and the recipe that moves the residual stream along it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.analyses.probing.sweeps import Sweep, check_neurons
from interp.corpora.batching import Batch
from interp.corpora.pairs import check_pairs
from interp.corpora.positions import state_rows
from interp.models.edits import Edit
from interp.models.running import running
from interp.models.sites import Model, Recipe, check_model, state_name
from interp.models.spelling import token_names
from interp.passes.reading import forward
from interp.support.checks import finite_number
from interp.support.choices import Bos

__all__ = ["Probe", "check_probe", "pair_scores", "probe", "steer", "token_scores"]
__dir__ = __all__.copy


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear probe of one hidden state, on the state's own scale: `score(x) = direction · x + offset`.

    For a probe with weights w and gates m on states standardised by mean μ and SD σ, `direction` is `(w ⊙ m)/σ` and
    `offset` is `−direction · μ`. A score above 0 means good, and σ(score) is the probability of good.
    """

    task: str
    state: int
    direction: Float[np.ndarray, " d_model"]
    offset: float

    @property
    def dims(self) -> list[int]:
        """The neurons that the probe reads."""
        return np.flatnonzero(self.direction).tolist()

    def score(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
        """The score of each state, in float64."""
        return x.double() @ torch.from_numpy(self.direction).to(x.device) + self.offset


def probe(found: Sweep, task: str, state: int) -> Probe:
    """The sparse probe of a task and state, from the table `neurons` of a sweep.

    Raises ValueError for a task or state that is not in the table, and for a table with missing or repeated dimensions.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, l0_strengths=[0.4], methods=["l0"], controls=["none"], progress=False)
        >>> one = probe(found, "reflexive_number", state=6)
        >>> one.dims == found.neurons.query("gate > 0")["dim"].tolist()  # it reads the neurons with an open gate
        True
    """
    neurons = found.neurons
    part = neurons[(neurons["task"] == task) & (neurons["state"] == state)].sort_values("dim")
    if part.empty:
        tasks = ", ".join(map(str, neurons["task"].unique()))
        states = ", ".join(map(str, neurons["state"].unique()))
        raise ValueError(f"no probe of task {task!r} at state {state}; found tasks {tasks}; states {states}")
    check_neurons(part)
    scale = part["scale"].to_numpy(dtype=np.float64)
    direction = (part["gate"] * part["weight"]).to_numpy(dtype=np.float64) / scale
    return Probe(task, state, direction, -float(direction @ part["mean"].to_numpy(dtype=np.float64)))


def steer(model: Model, probe: Probe, shift: float | int) -> Recipe:
    """Raise a probe's score by `shift` at every position, by moving along it: `x + shift · v/‖v‖²` with `v = (w ⊙
    m)/σ`.

    This is the smallest change of the residual stream that does so. All positions are changed, because a change at a
    single one (an appended EOS) could not affect the probability of the sentence before it.

    Args:
        shift: the change of the score, in nats of log-odds.

    Raises ValueError for a probe of another width, for a state that the model does not have, for a probe without
    neurons, and for a shift that is not finite.

    Examples:
        >>> from interp.hooks import capture
        >>> from interp.testing import toy_decoder
        >>> model, before, after = toy_decoder(), {}, {}
        >>> one = Probe("a task", state=1, direction=np.arange(16.0), offset=0.0)
        >>> recipe = capture(model, "resid_post", before, layer=0) + steer(model, one, 2)
        >>> with model.hooks(fwd_hooks=recipe + capture(model, "resid_post", after, layer=0)):
        ...     logits = model("w1 w2", prepend_bos=False)
        >>> [(one.score(after[name]) - one.score(before[name])).round(decimals=3).tolist() for name in after]
        [[[2.0, 2.0]]]
    """
    shift = finite_number(shift, "shift")
    check_probe(model, probe)
    v = torch.from_numpy(probe.direction)
    if not v.any():
        raise ValueError(f"the probe of {probe.task} at state {probe.state} reads no neuron, so it has no direction")
    step = (shift * v / v.square().sum()).to(model.W_U.device)
    name = state_name(model, probe.state)
    return [(name, Edit(model, name, lambda resid, hook: (resid + step.to(resid.device)).to(resid.dtype)))]


@torch.no_grad()
def token_scores(
    model: Model, probe: Probe, sentence: str, *, bos: Bos = "auto"
) -> tuple[list[str], Float[np.ndarray, " pos"]]:
    """The tokens of a sentence as the model reads them, including special ones, and the probe's score at each. Tokens
    are in readable form (`interp.models.spelling.token_names`).

    The probe was trained at the position where its states were collected (such as an appended EOS). At other tokens it
    is used outside of its range, so scores show where a distinction appears, but are not probabilities.

    Args:
        bos: put the beginning-of-sequence token first. `"auto"`: see `interp.corpora.batches`.

    Raises ValueError for a model without a tokenizer, for a sentence that has no tokens or is longer than the context,
    and for a probe of another width or of a state that the model does not have. Raises TypeError if the sentence is not
    a string.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, l0_strengths=[0.4], methods=["l0"], controls=["none"], progress=False)
        >>> tokens, scores = token_scores(model, probe(found, "reflexive_number", 6), "The boy hurt himself.", bos=True)
        >>> len(tokens) == len(scores)
        True
    """
    check_probe(model, probe)
    [row] = state_rows(model, [sentence], "eos", bos=bos)
    seen: list[Tensor] = []
    with running(model, [(state_name(model, probe.state), lambda resid, hook: seen.append(resid))]):
        forward(model, Batch.of([row]).to(model.W_U.device), model.cfg.n_layers)
    return token_names(model, row), probe.score(seen[0][0]).cpu().numpy()


def pair_scores(model: Model, pairs: pd.DataFrame, probes: Sequence[Probe], *, bos: Bos = "auto") -> pd.DataFrame:
    """The score of each probe at every token of the first pair of its task (see `token_scores`).

    Returns the table `views` of a `ProbingStudy`.

    Raises ValueError for a probe whose task has no pairs, and the errors of `token_scores`.
    """
    check_pairs(pairs)
    first = pairs.drop_duplicates("UID").set_index("UID")
    rows: list[tuple[object, ...]] = []
    for probe in probes:
        if probe.task not in first.index:
            raise ValueError(f"there is no pair of task {probe.task!r}; found {', '.join(first.index)}")
        for sentence in ("good", "bad"):
            tokens, scores = token_scores(model, probe, first[f"sentence_{sentence}"][probe.task], bos=bos)
            rows += zip(repeat(probe.task), repeat(probe.state), repeat(sentence), count(), tokens, scores.tolist())
    return pd.DataFrame(rows, columns=["task", "state", "sentence", "position", "token", "score"])


def check_probe(model: Model, probe: Probe) -> None:
    """Raise ValueError for a probe of another width than the model's, or of a state that the model does not have."""
    check_model(model)
    reads = len(probe.direction)
    width = model.cfg.d_model
    if reads != width:
        mismatch = f"the probe of {probe.task} reads {reads} dimensions, but the residual stream has {width}"
        raise ValueError(f"{mismatch}; it belongs to another model")
    state_name(model, probe.state)

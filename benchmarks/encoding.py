"""The log-linear fit, pruning curves and neuron scans, against code that runs the model once for each.

`python benchmarks/encoding.py [--quick]`. A random GPT-2 of 124M parameters; code that runs the model once a neuron,
or once a pruned embedding, is timed on a few of them, and the rest is taken to be the same again.
"""

from collections.abc import Iterator

import numpy as np
import torch
import transformers
from models import GPT2, random_model, tokens
from sklearn.linear_model import LinearRegression
from timing import Row, alternate, command, note_only, row

import interp
from interp import corpora, encoding, hooks
from interp.encoding.neurons import MeanNeurons, NeuronEffects
from interp.encoding.pruning import FRACTIONS, PrunedPredictions, removal_order
from interp.observers import observe

ORDERS = ("spearman", "random", "reverse")
RUN = 2  # forward passes that are timed of the ways that take one for each neuron or embedding
EXACT = 256  # neurons that are timed of the exact scan
NEURONS = 3_072
FIT, CURVES = "fit of −log α on the output embeddings", f"pruning curves, {len(FRACTIONS)} fractions × 3 orders"
SCREEN, SCAN = "screen of 3,072 neurons, exact for 50", "exact scan of 3,072 neurons"


def rows(quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 3
    with random_model(transformers.GPT2Config()) as (model, hf):
        ids = tokens(2 if quick else 4, 128, 50_257)
        batches = corpora.batches(model, ids, batch_size=2)
        found = {}

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                model(batch.tokens)

        def fit() -> None:
            found["fit"] = encoding.fit(model, batches, progress=False)

        @torch.no_grad()
        def scikit_learn() -> None:
            alpha = torch.zeros(50_257, dtype=torch.float64)
            for batch in batches:
                alpha += hf(batch.tokens).logits.softmax(-1).sum((0, 1))
            E, target = hf.lm_head.weight.double().numpy(), -(alpha / ids.numel()).log().numpy()
            found["score"] = LinearRegression().fit(E, target).score(E, target)

        seconds = alternate({"interp": fit, "scikit-learn": scikit_learn, "forward": forward}, repeats=repeats)
        r2 = float(found["fit"].regression["r2"].iloc[0])
        yield row(
            FIT, f"{GPT2}, {ids.numel()} tokens", seconds["interp"],
            other=("transformers and LinearRegression, no controls", seconds["scikit-learn"]),
            floor=("HookedTransformer, with logits", seconds["forward"]),
            note=f"R² {r2:.6f} and {found['score']:.6f}",
        )  # fmt: skip

        orders = {order: removal_order(found["fit"], order) for order in ORDERS}
        removed = [round(fraction * 768) for fraction in FRACTIONS]

        def curves() -> None:
            observe(model, batches, PrunedPredictions(model, orders, removed), progress=False)

        @torch.no_grad()
        def pruned_in_turn() -> None:
            for n in removed[1 : 1 + RUN]:
                with model.hooks(fwd_hooks=hooks.prune_output_dims(model, orders["spearman"][:n])):
                    for batch in batches:
                        model(batch.tokens).log_softmax(-1)

        seconds = alternate({"interp": curves, "in turn": pruned_in_turn, "forward": forward}, repeats=repeats)
        yield row(
            CURVES, f"{GPT2}, {ids.numel()} tokens", seconds["interp"],
            other=("a forward pass each", seconds["in turn"].times(len(FRACTIONS) * len(ORDERS) / RUN)),
            floor=("HookedTransformer, with logits", seconds["forward"]), note=f"{RUN} passes of theirs timed",
        )  # fmt: skip
        yield from scans(model, corpora.batches(model, ids[:1], batch_size=1), repeats)
    tiny = interp.load("tiny-gpt2")
    text = corpora.sample_positions(corpora.batches(tiny, "bundled", bos=True), 0.005 if quick else 0.02)
    full = encoding.frequency_neurons(tiny, text, scan="exact", progress=False)
    screened = encoding.frequency_neurons(tiny, text, top=0, progress=False)
    for column in ("delta_loss", "delta_entropy", "delta_kl_unigram"):
        error = np.abs(screened[column] - full[column]).max() / np.abs(full[column]).max()
        yield note_only(
            "screen of all neurons, no exact ones", "tiny-gpt2", f"error of {column} / largest: {error:.1e}"
        )


def scans(model: interp.sites.Model, few: corpora.Batches, repeats: int) -> Iterator[Row]:
    counts = np.random.default_rng(0).integers(0, 1_000, 50_257)
    log_u = torch.from_numpy(np.log((counts + 1) / (counts + 1).sum()))
    read = MeanNeurons(model)
    observe(model, few, read, progress=False)
    name = "blocks.11.mlp.hook_post"

    @torch.no_grad()
    def in_turn() -> None:
        for neuron in range(RUN):

            def ablate(a: torch.Tensor, hook: object, neuron: int = neuron) -> torch.Tensor:
                a[..., neuron] = read.mean[neuron]
                return a

            for batch in few:
                log_p = model.run_with_hooks(batch.tokens, fwd_hooks=[(name, ablate)])[0].log_softmax(-1)
                p = log_p.exp()
                -(p * log_p).sum(-1)
                (p * (log_p - log_u)).sum(-1)

    def exact() -> None:
        observe(model, few, NeuronEffects(model, list(range(EXACT)), read.mean, log_u, exact=True), progress=False)

    def screen() -> None:
        encoding.frequency_neurons(model, few, unigram=counts, top=50, progress=False)

    seconds = alternate({"in turn": in_turn, "exact": exact, "screen": screen}, repeats=repeats)
    other = ("a forward pass each", seconds["in turn"].times(NEURONS / RUN))
    for what, ours, timed in (
        (SCAN, seconds["exact"].times(NEURONS / EXACT), EXACT),
        (SCREEN, seconds["screen"], NEURONS),
    ):
        note = f"{RUN} passes of theirs timed" + (f", {EXACT} neurons of interp's" if timed == EXACT else "")
        yield row(what, f"{GPT2}, 128 tokens", ours, other=other, note=note)


if __name__ == "__main__":
    command(rows, __doc__)

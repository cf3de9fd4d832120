"""The log-linear fit, pruning curves and neuron scans, against code that runs the model once for each edit.

`python benchmarks/encoding.py [--quick]`. A GPT-2 of 124M parameters with random weights. Code that runs the model once
per neuron or per pruned embedding is timed on a few of them, and its time is scaled up to all of them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from models import GPT2, random_model, tokens
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from timing import Row, agrees, alternate, command, note_only, peak_memory, row
from transformer_lens import HookedTransformer

import interp
from interp import corpora, encoding, hooks
from interp.analyses.encoding.pruning import FRACTIONS
from interp.corpora import Batches
from interp.instruments.decomposition import decompose
from interp.instruments.logits import SiteMean
from interp.instruments.neurons import NeuronEffects
from interp.models.embeddings import Embeddings
from interp.passes.reading import observe

ORDERS = ("spearman", "random", "reverse")
RUN = 2  # forward passes that are timed, where the other code needs one per neuron or embedding
EXACT = 256  # neurons of the exact scan that are timed
NEURONS = 3_072
FIT = "fit of −log α on the output embeddings"
CURVES = f"pruning curves, {len(FRACTIONS)} fractions × 3 orders"
DECOMPOSED = "regression and principal components of output embeddings"
ALONE = """
import sys
sys.path.insert(0, sys.argv[4])
import encoding
W_U, targets = encoding.embeddings(int(sys.argv[2]), int(sys.argv[3]))
{"interp": encoding.in_blocks, "whole": encoding.as_a_whole, "neither": lambda *given: None}[sys.argv[1]](W_U, targets)
"""
SCREEN, SCAN = "screen of 3,072 neurons (second order), exact for 50", "exact scan of 3,072 neurons"


def rows(quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 3
    with random_model(transformers.GPT2Config()) as (model, hf):
        ids = tokens(2 if quick else 4, 128, 50_257)
        batches = corpora.batches(model, ids, batch_size=2)
        results = {}

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                model(batch.tokens)

        def fit() -> None:
            results["fit"] = encoding.fit(model, batches, progress=False)

        @torch.no_grad()
        def scikit_learn() -> None:
            alpha = torch.zeros(50_257, dtype=torch.float64)
            for batch in batches:
                alpha += hf(batch.tokens, use_cache=False).logits.softmax(-1).sum((0, 1))
            E = hf.lm_head.weight.double().numpy()
            target = -(alpha / ids.numel()).log().numpy()
            results["score"] = LinearRegression().fit(E, target).score(E, target)

        seconds = alternate({"interp": fit, "scikit-learn": scikit_learn, "forward": forward}, repeats=repeats)
        r2 = float(results["fit"].regression["r2"].iloc[0])
        yield row(
            FIT, f"{GPT2}, {ids.numel()} tokens", seconds["interp"],
            other=("transformers and LinearRegression, no controls", seconds["scikit-learn"]),
            floor=("HookedTransformer, with logits", seconds["forward"]),
            note=agrees("difference of R²", abs(r2 - results["score"]), 1e-6),
        )  # fmt: skip

        yield from curves(model, batches, results["fit"], repeats)
        yield from scans(model, corpora.batches(model, ids[:1], batch_size=1), repeats)
    yield decomposition(quick)
    tiny = interp.load("tiny-gpt2")
    text = corpora.batching.sample_positions(corpora.batches(tiny, "bundled", bos="texts"), 0.005 if quick else 0.02)
    full = encoding.frequency_neurons(tiny, text, top=None, progress=False)
    screened = encoding.frequency_neurons(tiny, text, top=0, progress=False)
    for column in ("delta_loss", "delta_entropy", "delta_kl_unigram"):
        error = np.abs(screened[column] - full[column]).max() / np.abs(full[column]).max()
        yield note_only("screen of all neurons, none exact", "tiny-gpt2", f"error of {column} / largest: {error:.1e}")


def embeddings(d: int, n: int) -> tuple[torch.Tensor, np.ndarray]:
    """`W_U` `[d_model, d_vocab]`, stored with the vocabulary as the first axis, and two targets."""
    E = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).mul_(torch.linspace(1, 0.1, d))
    return E.mT, np.random.default_rng(0).normal(size=(n, 2))


def in_blocks(W_U: torch.Tensor, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slopes of the targets, and the variance of each principal component."""
    parts = decompose(Embeddings(W_U), targets)
    sizes = np.ldexp(parts.singular, parts.exponent)
    return np.ldexp(parts.slopes, -parts.exponent), sizes**2 / (parts.n_types - 1)


def as_a_whole(W_U: torch.Tensor, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    E = W_U.double().numpy().T
    slopes = np.linalg.lstsq(E - E.mean(0), targets - targets.mean(0))[0]
    return slopes, PCA(svd_solver="covariance_eigh").fit(E).explained_variance_


def decomposition(quick: bool) -> Row:
    d, n = (256, 16_000) if quick else (1_024, 128_000)
    W_U, targets = embeddings(d, n)
    results = {}

    def ours() -> None:
        results["interp"] = in_blocks(W_U, targets)

    def whole() -> None:
        results["whole"] = as_a_whole(W_U, targets)

    seconds = alternate({"interp": ours, "whole": whole}, repeats=1 if quick else 3)
    differ = max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(*results.values(), strict=True))
    where = str(d), str(n), str(Path(__file__).parent)
    peaks = [peak_memory(ALONE, way, *where) for way in ("neither", "interp", "whole")]
    peaks_text = "peak of a process, MiB: {:,.0f} with W_U alone, {:,.0f} with interp, {:,.0f} with the other code"
    return row(
        DECOMPOSED, f"{n:,} types, d = {d:,}, float32", seconds["interp"],
        other=("np.linalg.lstsq and PCA on a float64 copy", seconds["whole"]),
        note=agrees("largest difference / largest value", differ, 1e-9) + "; " + peaks_text.format(*peaks),
    )  # fmt: skip


def curves(model: HookedTransformer, batches: Batches, fit: encoding.regression.Fit, repeats: int) -> Iterator[Row]:
    orders = {order: encoding.pruning.removal_order(fit, order) for order in ORDERS}
    removed = [round(fraction * 768) for fraction in FRACTIONS]
    results = {}
    removed_counts = removed[1 : 1 + RUN]
    cached: list[torch.Tensor] = []

    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(batch.tokens)

    def ours() -> None:
        table = encoding.pruning_curve(model, batches, fit=fit, order=list(orders), progress=False)
        results["interp"] = {order: part.reset_index(drop=True) for order, part in table.groupby("order", sort=False)}

    def divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
        """Mean KL. Top-1 agreement is computed too, because interp also computes it."""
        (log_p.argmax(-1) == log_q.argmax(-1)).float().mean()
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    @torch.no_grad()
    def passes() -> None:
        kl = []
        for n in removed_counts:
            with model.hooks(fwd_hooks=hooks.prune_output_dims(model, orders["spearman"][:n])):
                pruned = [model(batch.tokens).log_softmax(-1) for batch in batches]
            kl.append(np.mean([divergence(p, q) for p, q in zip(results["log_p"], pruned, strict=True)]))
        results["kl"] = kl

    @torch.no_grad()
    def heads() -> None:
        for n in removed_counts:
            for h, log_p in zip(cached, results["log_p"], strict=True):
                h = h.clone()
                h[..., orders["spearman"][:n]] = 0
                divergence(log_p, model.unembed(h).log_softmax(-1))

    with torch.no_grad():
        seen: dict[str, torch.Tensor] = {}
        with model.hooks(fwd_hooks=hooks.capture(model, "head_input", seen)):
            results["log_p"] = []
            for batch in batches:
                results["log_p"].append(model(batch.tokens).log_softmax(-1))
                cached.append(*seen.values())
    seconds = alternate({"interp": ours, "passes": passes, "heads": heads, "forward": forward}, repeats=repeats)
    differ = np.abs(results["interp"]["spearman"]["kl"].to_numpy()[1 : 1 + RUN] / results["kl"] - 1).max()
    for name, key in (("one forward pass each", "passes"), ("the head each time, on kept inputs", "heads")):
        yield row(
            CURVES, f"{GPT2}, {sum(batch.tokens.numel() for batch in batches)} tokens", seconds["interp"],
            other=(name, seconds[key].times(len(FRACTIONS) * len(ORDERS) / RUN)),
            floor=("HookedTransformer, with logits", seconds["forward"]),
            note=agrees("largest relative difference of KL", differ, 1e-2),
        )  # fmt: skip


def scans(model: HookedTransformer, few: Batches, repeats: int) -> Iterator[Row]:
    """Changes of entropy and of KL to the unigram distribution when each neuron is set to its mean."""
    counts = np.random.default_rng(0).integers(0, 1_000, 50_257)
    log_u = torch.from_numpy(np.log((counts + 1) / (counts + 1).sum())).float()
    read = SiteMean(model, "mlp_post", 3072, layer=11)
    observe(model, few, read, progress=False)
    (tokens_,) = [batch.tokens for batch in few]
    name = "blocks.11.mlp.hook_post"
    results = {}

    def described(logits: torch.Tensor) -> torch.Tensor:
        log_p = logits[0].log_softmax(-1)
        p = log_p.exp()
        return torch.stack([-(p * log_p).sum(-1).mean(), (p * (log_p - log_u)).sum(-1).mean()])

    with torch.no_grad():
        _, cache = model.run_with_cache(tokens_, names_filter=[name, "blocks.11.hook_resid_post"])
        before = described(model(tokens_))

    @torch.no_grad()
    def passes() -> None:
        after = []
        for neuron in range(RUN):

            def ablate(a: torch.Tensor, hook: object, neuron: int = neuron) -> torch.Tensor:
                a[..., neuron] = read.mean[neuron]
                return a

            after.append(described(model.run_with_hooks(tokens_, fwd_hooks=[(name, ablate)])))
        results["passes"] = torch.stack(after) - before

    @torch.no_grad()
    def tails() -> None:
        for neuron in range(RUN):
            delta = read.mean[neuron].to(cache[name]) - cache[name][..., neuron]
            resid = cache["blocks.11.hook_resid_post"] + delta[..., None] * model.blocks[-1].mlp.W_out[neuron]
            described(model.unembed(model.ln_final(resid)))

    def exact() -> None:
        observer = NeuronEffects(model, list(range(EXACT)), read.mean, log_u, exact=True)
        observe(model, few, observer, progress=False)
        results["exact"] = observer.table

    def screen() -> None:
        encoding.frequency_neurons(model, few, unigram=counts, top=50, progress=False)

    seconds = alternate({"exact": exact, "screen": screen, "passes": passes, "tails": tails}, repeats=repeats)
    here = results["exact"][["delta_entropy", "delta_kl_unigram"]].to_numpy()[:RUN]
    differ = np.abs(here - results["passes"].numpy()).max()
    for title, ours, note in (
        (
            SCAN,
            seconds["exact"].times(NEURONS / EXACT),
            agrees("interp timed in part too, × 12; largest difference, nats", float(differ), 1e-4),
        ),
        (SCREEN, seconds["screen"], "for its error, see tiny-gpt2"),
    ):
        ways = {"one forward pass each": "passes", "final norm and head each time, on kept inputs": "tails"}
        for way, key in ways.items():
            yield row(title, f"{GPT2}, 128 tokens", ours, other=(way, seconds[key].times(NEURONS / RUN)), note=note)


if __name__ == "__main__":
    command(rows, __doc__)

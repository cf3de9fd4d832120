"""Pruning curves and neuron scans against the forward pass, on a random GPT-2 of 124M parameters.

Prints a Markdown table. `python benchmarks/encoding.py [--quick]`.
"""

import argparse
import tempfile

import numpy as np
import torch
import transformers
from timing import alternate, markdown, ratio

import interp
from interp import corpora, encoding
from interp.encoding.neurons import MeanNeurons, NeuronEffects
from interp.encoding.pruning import FRACTIONS, PrunedPredictions, removal_order
from interp.observers import observe

ORDERS = ("spearman", "random", "reverse")
ABLATED = 4  # forwards that are timed of the one-forward-a-neuron way; the rest is the same again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer positions and repeats")
    quick = parser.parse_args().quick
    repeats = 2 if quick else 3
    transformers.utils.logging.disable_progress_bar()
    print(f"random GPT-2, 124M, V = 50,257; {torch.get_num_threads()} threads; torch {torch.__version__}\n")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        hf = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        for parameter in (hf.transformer.ln_f.bias, hf.transformer.ln_f.weight):
            parameter.data += 0.3 * torch.randn(768)
        hf.save_pretrained(directory)
        model = interp.load(directory)
    tokens = torch.randint(50_257, (4 if quick else 8, 128), generator=torch.Generator().manual_seed(0))
    batches = corpora.batches(model, tokens, batch_size=4)
    counts = np.random.default_rng(0).integers(0, 1_000, 50_257)
    fit = encoding.fit(model, batches, progress=False)
    removed = [round(fraction * 768) for fraction in FRACTIONS]
    orders = {order: removal_order(fit, order) for order in ORDERS}

    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(batch.tokens)

    def curve() -> None:
        observe(model, batches, PrunedPredictions(model, orders, removed), progress=False)

    pruning = alternate({"curve": curve, "forward": forward}, repeats=repeats)
    rows = [
        (f"{len(FRACTIONS)} fractions, {len(ORDERS)} orders / forward with logits", ratio(pruning, "curve", "forward"))
    ]

    few = corpora.batches(model, tokens[:2], batch_size=2)
    read = MeanNeurons(model)
    observe(model, few, read, progress=False)
    log_u = torch.from_numpy(np.log((counts + 1) / (counts + 1).sum()))
    every = list(range(3072))
    name = "blocks.11.mlp.hook_post"

    @torch.no_grad()
    def one_forward_a_neuron() -> None:
        for neuron in range(ABLATED):

            def ablate(a: torch.Tensor, hook: object, neuron: int = neuron) -> torch.Tensor:
                a[..., neuron] = read.mean[neuron]
                return a

            for batch in few:
                logits = model.run_with_hooks(batch.tokens, fwd_hooks=[(name, ablate)])[0]
                log_p = logits.log_softmax(-1)
                p = log_p.exp()
                -(p * log_p).sum(-1)
                (p * (log_p - log_u)).sum(-1)

    exact = every[:256]

    def exact_scan() -> None:
        observe(model, few, NeuronEffects(model, exact, read.mean, log_u, exact=True), progress=False)

    scans = alternate(
        {
            "forwards": one_forward_a_neuron,
            "exact": exact_scan,
            "screen": lambda: encoding.frequency_neurons(model, few, unigram=counts, top=50, progress=False),
        },
        repeats=repeats,
    )
    for name_of, neurons in (("exact", len(exact)), ("screen", len(every))):
        scaled = {"forwards": [t / ABLATED for t in scans["forwards"]], "ours": [t / neurons for t in scans[name_of]]}
        what = "exact scan" if name_of == "exact" else "screen of all, exact for 50"
        rows.append((f"one forward a neuron / {what}", ratio(scaled, "forwards", "ours")))
    tiny = interp.load("tiny-gpt2")
    text = corpora.sample_positions(corpora.batches(tiny, "bundled", bos=True), 0.02)
    full = encoding.frequency_neurons(tiny, text, scan="exact", progress=False)
    screened = encoding.frequency_neurons(tiny, text, top=0, progress=False)
    for column in ("delta_loss", "delta_entropy", "delta_loss_frozen", "delta_entropy_frozen", "delta_kl_unigram"):
        error = np.abs(screened[column] - full[column]).max() / np.abs(full[column]).max()
        rows.append((f"tiny-gpt2: error of the screen's {column} / largest value", f"{error:.1e}"))
    print(markdown([{"what": what, "median (range)": value} for what, value in rows]))


if __name__ == "__main__":
    main()

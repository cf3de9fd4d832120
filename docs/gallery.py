"""The gallery of the docs: figures of one run, each with the code that draws it and how to read it.

    interp report --model tiny-gpt2 --more --out runs/gallery
    python docs/gallery.py runs/gallery

Writes docs/gallery.md and the pictures in docs/gallery/.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

import interp
from interp.figures.paper import save

HOME = Path(__file__).parent
WIDTH, FEWER, COLOURS = 3.3, 2, 128
HEAD = """# Gallery

The figures of [`interp.plots`](reference/plots.md) for `tiny-gpt2`, 3.3 inches wide. A page of a run shows most of
them. The second command makes this page.

```
interp report --model tiny-gpt2 --more --out runs/gallery
python docs/gallery.py runs/gallery
```

```python
import interp
from interp import plots

run = "runs/gallery"
```
"""
SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "Word frequency in the prediction head": (
        'effect = interp.load_result(run, "frequency")',
        {
            "bias_ratio(effect)": "Above 1, words become more probable as the bias is scaled; "
            "a line that falls says that the bias favours frequent words.",
            'bias_curve(effect, "ln")': "The nearer a line to the diagonal, the nearer predictions to word frequency.",
            "kl_by_scale(effect)": "The higher a line, the further predictions are from word frequency.",
            'projection(effect, "ln")': "A rising cloud: the bias adds more to the logits of frequent tokens.",
        },
    ),
    "Who writes word frequency": (
        'ledger = interp.frequency.components.writers(interp.load("tiny-gpt2"), "bundled")',
        {"frequency_writers(ledger)": "Components above 0 favour frequent words; the line is their sum so far."},
    ),
    "Random directions in the prediction head": (
        'study = interp.load_result(run, "controls")',
        {
            "random_directions(study)": "A filled mark to the right of the open ones: "
            "no random direction of that kind has such an effect.",
            "bands(study)": "What tokens of each band lose without a direction, from frequent to rare words.",
        },
    ),
    "Generated text": (
        'study = interp.load_result(run, "generation")',
        {
            "generation_tradeoff(study)": "Up is more diverse, right is worse prediction; a line follows λ.",
            'text_measure(study, "diversity")': "One measure along λ, beside that of human text.",
        },
    ),
    "Attention by residual dimension": (
        'study = interp.load_result(run, "attention")',
        {
            "dimension_means(study)": "Lines outside the grey range are outlier dimensions.",
            "means_by_dimension(study)": "Spikes that all states share are outlier dimensions.",
            "attention_by_layer(study)": "A mark above its dotted line: the class gets more than uniform attention.",
            "outlier_values(study)": "Lines that part: the dimension tells this class of tokens from others.",
            'contributions(study, 2, "first")': "The furthest points are the dimensions that set scores of the class.",
            "all_contributions(study, 2)": "Spikes at a marked outlier: it moves the scores of all keys.",
            "contributions_by_layer(study)": "The same for every block: the mean over heads, and their range.",
            "contribution_table(study, 2, 138)": "A column that differs from the others: "
            "in that head, the dimension sets the class apart.",
            "outlier_contributions(study, 2)": "The same for all outlier dimensions of a block.",
            'ablation(study, "first")': "Squares beyond the circles: removing an outlier changes attention "
            "more than removing others.",
        },
    ),
    "Attention sinks": (
        'study = interp.load_result(run, "sinks")',
        {
            "sink_heads(study)": "Dark squares are heads that attend to the first position.",
            "sink_positions(study)": "A line above the dotted one: the position draws more than uniform attention.",
            "sink_scores(study)": "Points to the upper right are sinks: up by direction of the key, right by norm.",
        },
    ),
    "Token probability in output embeddings": (
        'study = interp.load_result(run, "encoding")',
        {
            "probability_fit(study)": "Points near the line: the embedding tells the probability.",
            "embedding_scatter(study)": "Colours that change along an axis: the axis encodes probability.",
            "dimension_slopes(study)": "Lines that fall late: many dimensions carry probability.",
            "pruning(study)": "Lines that stay high: predictions survive without these dimensions.",
            "steering(study)": "Marks on the diagonal: the probability that was requested was achieved.",
            "neurons(study)": "Right and low: a large neuron that writes nearly the same to all logits; "
            "colour is what ablating it does to entropy.",
            "dynamics(study)": "Where a line bends is when this measure is learnt.",
        },
    ),
    "Directions of word frequency, output embeddings and attention": (
        'study = interp.load_result(run, "directions")',
        {
            "direction_cosines(study)": "Bright squares are directions that nearly coincide; bold ones do so "
            "beyond random rotations.",
        },
    ),
    "Sparse probes for grammar": (
        'study = interp.load_result(run, "probing")',
        {
            "sparse_probes(study)": "A sparse line near the dense one: few gates are enough.",
            "beyond_words(study)": "Above 0, or above the line, probes know more than the words.",
            "topk_probes(study)": "A solid line above its dotted one: the model's dimensions beat a random basis.",
            "random_dims(study)": "Where the curve crosses the line, so many random dimensions equal the top ones.",
            "random_dims_by_state(study)": "The same by hidden state.",
            "gate_agreement(study)": "Near 1, gates open where |t| is large; dotted is the largest ρ possible.",
            "probe_ablation(study)": "A box below the others: the model needs the neurons that probes found.",
            "transfer_matrix(study)": "Bright squares off the diagonal: a probe of one task reads another.",
            "general_probes(study)": "Above the dotted line, probes read a task that they have not seen.",
            "neuron_overlap(study)": "Bright squares: two tasks open the same gates more often than by chance.",
        },
    ),
    "Units that tell good sentences from bad": (
        'study = interp.load_result(run, "units")',
        {
            "unit_consistency(study)": "Grammar above swapped words and flipped labels: its units are found again.",
            "unit_depth(study)": "A peak is where most of the top units are.",
            "unit_separability(study)": "A mark above its controls: a single unit tells good sentences from bad.",
            "shared_units(study)": "Bright squares: two tasks share their top units.",
            "pair_similarity(study)": "Above the dotted line, the differences of pairs point the same way.",
        },
    ),
}
"""By heading: the line that loads what is drawn, and the calls of `interp.plots`, each with how to read its figure."""


def picture(figure: Any, path: Path) -> None:
    """Save a figure as a small PNG of few colours."""
    with TemporaryDirectory() as folder:
        large = Image.open(save(figure, Path(folder) / "figure.png", width=WIDTH)).convert("RGB")
    large.reduce(FEWER).quantize(COLOURS).save(path, optimize=True)


def main(run: Path) -> None:
    """Draw all figures, and write the page."""
    shelf = HOME / "gallery"
    for earlier in shelf.glob("*.png"):
        earlier.unlink()
    lines = [HEAD]
    for heading, (line, figures) in SECTIONS.items():
        names = {"interp": interp, "run": run}
        exec(line, names)
        lines += [f"## {heading}", "", "```python", line, "```", "", '<div class="gallery" markdown>', ""]
        for call, reading in figures.items():
            name = call.partition("(")[0]
            picture(eval(f"interp.plots.{call}", names), shelf / f"{name}.png")
            lines += [f"![{name}](gallery/{name}.png)<br>`plots.{call}`<br>{reading}", ""]
        lines += ["</div>", ""]
    (HOME / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

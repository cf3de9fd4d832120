"""All scales of b_LN from one pass, against the obvious code: edit the bias, run transformers, average the softmax.

Prints a Markdown table. `python benchmarks/frequency.py [--quick]`; needs gpt2-yelp under ../shared (or
INTERP_SHARED) for its first row, which is left out where it is absent.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from timing import alternate, markdown, peak_memory, ratio

import interp
from interp import corpora
from interp.frequency import bias_effect

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))
SCALES = [i / 10 for i in range(11)]
MEMORY = """
import sys, interp
from interp.frequency import bias_effect
model = interp.load(sys.argv[1])
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()[:2000]
bias_effect(model, lines * int(sys.argv[3]), scales=[i / 10 for i in range(11)], progress=False)
"""


@torch.no_grad()
def obvious(hf: transformers.GPT2LMHeadModel, rows: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Mean predicted distribution for each scale, one full run of the model a scale."""
    bias = hf.transformer.ln_f.bias
    original = bias.data.clone()
    means = []
    for scale in SCALES:
        bias.data = scale * original
        total = torch.zeros(hf.config.vocab_size, dtype=torch.float64)
        for batch in rows.split(batch_size):
            total += hf(batch).logits.softmax(-1).sum((0, 1))
        means.append(total / rows.numel())
    bias.data = original
    return means


@torch.no_grad()
def forward(model: torch.nn.Module, rows: torch.Tensor, batch_size: int) -> None:
    for batch in rows.split(batch_size):
        model(batch)


def measure(name: str, directory: Path, rows: torch.Tensor, batch_size: int, repeats: int) -> dict[str, str]:
    model = interp.load(directory)
    hf = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    counts = np.bincount(rows.flatten().numpy(), minlength=model.W_U.shape[1])
    effect = None

    def ours() -> None:
        nonlocal effect
        effect = bias_effect(model, rows, unigram=counts, scales=SCALES, batch_size=batch_size, progress=False)

    seconds = alternate(
        {
            "ours": ours,
            "HookedTransformer forward": lambda: forward(model, rows, batch_size),
            "transformers forward": lambda: forward(hf, rows, batch_size),
        },
        repeats=repeats,
    )
    whole = alternate({"obvious": lambda: obvious(hf, rows, batch_size), "ours": ours}, repeats=max(2, repeats // 2))
    means = torch.stack(obvious(hf, rows, batch_size)).numpy()
    found = effect.probabilities["probability"].to_numpy().reshape(len(SCALES), -1)
    error = np.abs(found / means[:, : found.shape[1]] - 1).max()
    return {
        "model": name,
        "rows": f"{len(rows)} × {rows.shape[1]}",
        "obvious / ours": ratio(whole, "obvious", "ours"),
        "ours / HookedTransformer forward": ratio(seconds, "ours", "HookedTransformer forward"),
        "ours / transformers forward": ratio(seconds, "ours", "transformers forward"),
        "tokens/s (ours)": f"{rows.numel() / statistics.median(seconds['ours']):,.0f}",
        "largest relative difference of q": f"{error:.0e}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer tokens and repeats")
    repeats = 3 if parser.parse_args().quick else 5
    transformers.utils.logging.disable_progress_bar()
    print(f"{len(SCALES)} scales; {torch.get_num_threads()} threads; torch {torch.__version__}\n")
    results = []
    yelp, text = SHARED / "models/gpt2-yelp", SHARED / "data/yelp/valid.txt"
    if yelp.is_dir():
        model = interp.load(yelp)
        lines = text.read_text(encoding="utf-8")
        rows = torch.cat([batch.tokens for batch in corpora.batches(model, [lines])])[:640]
        results.append(measure("gpt2-yelp, 0.9M, V = 1,000", yelp, rows, 64, repeats))
    with tempfile.TemporaryDirectory() as directory:
        torch.manual_seed(0)
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        gpt2.transformer.ln_f.bias.data.normal_(0, 0.3)
        gpt2.save_pretrained(directory)
        generator = torch.Generator().manual_seed(0)
        for length in (128, 1024):
            rows = torch.randint(50_257, (2048 // length, length), generator=generator)
            name = "random GPT-2, 124M, V = 50,257"
            results.append(measure(name, Path(directory), rows, max(1, 1024 // length), repeats))
    print(markdown(results))
    if yelp.is_dir():
        once, ten = (peak_memory(MEMORY, str(yelp), str(text), times) for times in ("1", "10"))
        print(f"\nPeak memory on 2,000 lines of {text.name}: {once:,.0f} MiB")
        print(f"on 10 × the text: {ten:,.0f} MiB ({ten / once:.2f} ×)")


if __name__ == "__main__":
    main()

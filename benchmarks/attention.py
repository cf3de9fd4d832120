"""Contributions to all attention scores, against the forward pass and against the array that holds every one of them.

Prints a Markdown table. `python benchmarks/attention.py [--quick]`; needs STS-B under ../shared (or INTERP_SHARED).
The model has BERT-base's shape and random weights, the tokenizer is tiny-bert's.
"""

import argparse
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from timing import alternate, markdown, peak_memory, ratio

import interp
from interp import corpora
from interp.attention import ScoreContributions
from interp.paths import BUNDLED

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))
SENTENCES = SHARED / "data/stsb/stsb-en-dev.csv"
AT_ONCE = 8  # sentences whose contributions, one by one, fit in memory
MEMORY = """
import sys, interp
from interp import attention, corpora
texts = list(corpora.load(sys.argv[1]))
attention.score_contributions(interp.load("tiny-bert"), texts * int(sys.argv[2]), progress=False)
"""


@torch.no_grad()
def naive(
    model: interp.sites.Model, batch: corpora.Batch, cache: dict[str, torch.Tensor], one_hot: torch.Tensor
) -> None:
    """Mean and key-centred mean by class from C for every query, key, head and dimension."""
    for layer, block in enumerate(model.blocks):
        x, q = cache[f"blocks.{layer}.hook_resid_pre"], cache[f"blocks.{layer}.attn.hook_q"]
        directions = torch.einsum("bmhe,hde->bmhd", q, block.attn.W_K)
        C = torch.einsum("bmhd,bnd->bhmnd", directions, x)
        real = batch.mask.to(x.dtype)
        pairs = torch.einsum("bm,bnc->bmnc", real, one_hot)
        torch.einsum("bhmnd,bmnc->hcd", C, pairs)
        centred = C - torch.einsum("bhmnd,bn->bhmd", C, real)[:, :, :, None] / real.sum(1)[:, None, None, None, None]
        torch.einsum("bhmnd,bmnc->hcd", centred, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="300 sentences, two rounds")
    quick = parser.parse_args().quick
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        hf = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=4096)).eval()
        hf.save_pretrained(directory)
        transformers.AutoTokenizer.from_pretrained(BUNDLED / "tiny-bert").save_pretrained(directory)
        model = interp.load(directory)
    batches = corpora.batches(model, corpora.load(SENTENCES, limit=300 if quick else None))
    read = list(batches)
    classes = corpora.token_classes(model)
    n_tokens = sum(int(batch.mask.sum()) for batch in read)

    def ours() -> None:
        interp.observe(model, batches, ScoreContributions(model, classes), progress=False)

    @torch.no_grad()
    def trunk() -> None:
        for batch in batches:
            model.encoder_output(batch.tokens, one_zero_attention_mask=batch.mask)

    @torch.no_grad()
    def transformers_trunk() -> None:
        for batch in batches:
            hf.bert(batch.tokens, attention_mask=batch.mask)

    print(f"{sum(batch.n_texts for batch in read):,} sentences, {n_tokens:,} tokens; 12 layers, 12 heads, d_model 768")
    print(f"{torch.get_num_threads()} threads; torch {torch.__version__}\n")
    whole = alternate({"ours": ours, "trunk": trunk, "transformers": transformers_trunk}, repeats=2 if quick else 3)

    few = next(iter(corpora.batches(model, corpora.load(SENTENCES, limit=AT_ONCE), batch_size=AT_ONCE)))
    with torch.no_grad():
        cache = dict(model.run_with_cache(few.tokens, one_zero_attention_mask=few.mask)[1])
    one_hot = torch.nn.functional.one_hot(classes(few.tokens), len(classes.names)) * few.mask[..., None]

    @torch.no_grad()
    def sums() -> None:
        observer = ScoreContributions(model, classes)
        for name, hook in observer.hooks(few):
            hook(cache[name], hook=SimpleNamespace(name=name))

    parts = alternate({"C": lambda: naive(model, few, cache, one_hot.float()), "sums": sums}, repeats=5)
    rows = [
        ("whole corpus: contributions / HookedEncoder trunk", ratio(whole, "ours", "trunk")),
        ("whole corpus: contributions / transformers trunk", ratio(whole, "ours", "transformers")),
        (f"{AT_ONCE} sentences, forward not counted: materialised C / sums", ratio(parts, "C", "sums")),
    ]
    print(markdown([{"what": what, "median (range)": value} for what, value in rows]))
    once, ten = (peak_memory(MEMORY, str(SENTENCES), times) for times in ("1", "10"))
    print(f"\nPeak memory on {SENTENCES.name} with tiny-bert: {once:,.0f} MiB; on 10 × the text: {ten:,.0f} MiB")


if __name__ == "__main__":
    main()

"""Generation with a hook active, against transformers' `generate` and `HookedTransformer.generate`.

Prints a Markdown table. `python benchmarks/generation.py [--quick]`. A GPT-2 of 124M with random weights, b_LN halved
by a hook here and by hand in transformers. `HookedTransformer.generate`, which has no beams, runs on matrices in
TransformerLens' own memory order, as it ships.
"""

import argparse
import copy
import statistics
import tempfile
from collections.abc import Callable

import torch
import transformers
from timing import alternate, markdown, ratio
from transformer_lens import HookedTransformer

import interp
from interp import generation, hooks
from interp.paths import BUNDLED

PROMPT = 32
CASES = ((1, 1), (8, 1), (1, 4), (8, 4))


def as_shipped(model: HookedTransformer) -> HookedTransformer:
    """A copy with contiguous matrices, and a tokenizer, whose padding its `generate` looks up."""
    plain = copy.deepcopy(model)
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    plain.set_tokenizer(transformers.AutoTokenizer.from_pretrained(BUNDLED / "tiny-gpt2"))
    return plain


def measure(
    model: HookedTransformer,
    plain: HookedTransformer,
    hf: transformers.GPT2LMHeadModel,
    batch: int,
    beams: int,
    new: int,
    repeats: int,
) -> dict[str, str]:
    ids = torch.randint(1, 4_096, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))
    config = transformers.GenerationConfig(num_beams=beams, do_sample=False, max_new_tokens=new)
    written: dict[str, list[tuple[int, ...]]] = {}

    def ours() -> None:
        recipe = hooks.scale_bias(model, "ln", 0.5)
        found = generation.generate(model, ids.tolist(), hooks=recipe, decoder=config, progress=False)
        written["interp"] = [text.token_ids for text in found]

    def theirs() -> None:
        found = hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, pad_token_id=0)
        written["transformers"] = [tuple(row) for row in found[:, PROMPT:].tolist()]

    def shipped() -> None:
        with plain.hooks(fwd_hooks=hooks.scale_bias(plain, "ln", 0.5)):
            plain.generate(
                ids, max_new_tokens=new, do_sample=False, stop_at_eos=False, prepend_bos=False, verbose=False
            )

    contestants: dict[str, Callable[[], object]] = {"interp": ours, "transformers": theirs}
    if beams == 1:
        contestants["HookedTransformer"] = shipped
    seconds = alternate(contestants, repeats=repeats)
    per_second = {name: f"{batch * new / statistics.median(times):,.1f}" for name, times in seconds.items()}
    return {
        "decoder": "greedy" if beams == 1 else f"beam {beams}",
        "batch": str(batch),
        "tokens/s: interp": per_second["interp"],
        "transformers": per_second["transformers"],
        "HookedTransformer": per_second.get("HookedTransformer", ""),
        "interp's speed / transformers'": ratio(seconds, "transformers", "interp"),
        "interp's / HookedTransformer's": ratio(seconds, "HookedTransformer", "interp") if beams == 1 else "",
        "same tokens": "yes" if written["interp"] == written["transformers"] else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds")
    quick = parser.parse_args().quick
    transformers.utils.logging.disable_progress_bar()
    new, repeats = (8, 2) if quick else (64, 5)
    torch.manual_seed(0)
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config(eos_token_id=None, bos_token_id=None)).eval()
    hf.transformer.ln_f.bias.data.normal_(0, 0.3)
    with tempfile.TemporaryDirectory() as directory:
        hf.save_pretrained(directory)
        model = interp.load(directory)
    hf.transformer.ln_f.bias.data *= 0.5
    plain = as_shipped(model)
    print(f"Prompts of {PROMPT} tokens, {new} new ones; {torch.get_num_threads()} threads; torch {torch.__version__}\n")
    print(markdown([measure(model, plain, hf, batch, beams, new, repeats) for batch, beams in CASES]))


if __name__ == "__main__":
    main()

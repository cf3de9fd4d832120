"""Generation with a hook active, against transformers' `generate` and `HookedTransformer.generate`.

`python benchmarks/generation.py [--quick]`. A GPT-2 of 124M parameters with random weights. b_LN is halved by a hook in
interp, and by hand in transformers. `HookedTransformer.generate`, which has no beam search, runs on matrices in
TransformerLens' own memory order, as it does without interp.
"""

import copy
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
import transformers
from models import GPT2, random_model, tokens
from timing import Row, alternate, command, row
from transformer_lens import HookedTransformer
from transformer_lens.utilities import gelu_new

from interp import generation, hooks
from interp.support.paths import BUNDLED

WHAT = "tokens generated with a hook active"
PROMPT = 32
SHIPPED = "HookedTransformer.generate"
CASES = ((1, 1), (8, 1), (1, 4), (8, 4))


def as_shipped(model: HookedTransformer) -> HookedTransformer:
    """A copy with contiguous matrices, and with a tokenizer, whose padding token its `generate` looks up."""
    plain = copy.deepcopy(model)
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    for block in plain.blocks:
        block.mlp.act_fn = gelu_new
    plain.set_tokenizer(transformers.AutoTokenizer.from_pretrained(BUNDLED / "tiny-gpt2"))
    return plain


def measured(
    model: HookedTransformer, plain: HookedTransformer, hf: transformers.GPT2LMHeadModel, batch: int, beams: int,
    new: int, repeats: int,
) -> Iterator[Row]:  # fmt: skip
    ids = tokens(batch, PROMPT, 4_096)
    config = transformers.GenerationConfig(num_beams=beams, do_sample=False, max_new_tokens=new)
    written: dict[str, list[tuple[int, ...]]] = {}

    def ours() -> None:
        recipe = hooks.scale_bias(model, "ln", 0.5)
        generated = generation.generate(model, ids.tolist(), hooks=recipe, decoder=config, progress=False)
        written["interp"] = [text.token_ids for text in generated]

    def theirs() -> None:
        generated = hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, pad_token_id=0)
        written["transformers"] = [tuple(row) for row in generated[:, PROMPT:].tolist()]

    def shipped() -> None:
        with plain.hooks(fwd_hooks=hooks.scale_bias(plain, "ln", 0.5)):
            generated = plain.generate(
                ids, max_new_tokens=new, do_sample=False, stop_at_eos=False, prepend_bos=False, verbose=False
            )
        written[SHIPPED] = [tuple(row) for row in generated[:, PROMPT:].tolist()]

    contestants: dict[str, Callable[[], object]] = {"transformers' generate, bias edited": theirs}
    if beams == 1:
        contestants[SHIPPED] = shipped
    seconds = alternate({"interp": ours, **contestants}, repeats=repeats)
    if any(generated != written["interp"] for generated in written.values()):
        sys.exit("the contestants generated different tokens with the same decoder")
    different = len({token for text in written["interp"] for token in text})
    decoder = "greedy" if beams == 1 else f"{beams} beams"
    for name in contestants:
        per_second = batch * new / statistics.median(seconds["interp"].seconds)
        note = f"{per_second:.1f} tokens/s; the same tokens from both, {different} distinct ones"
        yield row(
            WHAT, f"{GPT2}, {decoder}, batch {batch}, {new} new", seconds["interp"], other=(name, seconds[name]),
            note=note,
        )  # fmt: skip


def rows(quick: bool) -> Iterator[Row]:
    with random_model(transformers.GPT2Config(eos_token_id=None, bos_token_id=None, initializer_range=0.1)) as (
        model,
        hf,
    ):
        hf.transformer.ln_f.bias.data *= 0.5
        plain = as_shipped(model)
        for batch, beams in CASES[:1] if quick else CASES:
            yield from measured(model, plain, hf, batch, beams, 4 if quick else 32, 1 if quick else 3)


if __name__ == "__main__":
    command(rows, __doc__)

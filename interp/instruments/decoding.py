"""Text that transformers decodes from prompts with hooks active."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import GenerationConfig

from interp.corpora.frames import frame, framed, tokenizer_of
from interp.corpora.sentences import encode, padded
from interp.instruments.decoders import DECODERS, NEW_TOKENS, PRESETS, Decoder, batch_rows
from interp.models.identity import check_weights
from interp.models.running import Hooks, firing, hooks_of_others
from interp.models.shapes import Shape
from interp.models.sites import Model, check_vocabulary, is_encoder, view
from interp.models.spelling import token_names
from interp.passes.budget import Pass
from interp.passes.checkpoint import Checkpoint
from interp.support.checks import check_seed, unicode_text, whole_number
from interp.support.choices import Bos

__all__ = ["NO_DECODER", "Generation", "check_decodes", "continuation", "continued", "decode", "generate", "resolved"]
__dir__ = __all__.copy

NO_DECODER = "an encoder (BERT) does not continue text; expected a causal model"
_SUPPORTED = {
    "do_sample", "num_beams", "early_stopping", "length_penalty", "num_return_sequences", "max_new_tokens",
    "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "repetition_penalty", "no_repeat_ngram_size", "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "sequence_bias", "forced_eos_token_id", "renormalize_logits",
    "remove_invalid_values", "watermarking_config", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
    "transformers_version", "_from_model_config",
}  # fmt: skip
_sampling = threading.RLock()
_OFF = {"num_beam_groups": 1, "diversity_penalty": 0.0}


@dataclass(frozen=True)
class Generation:
    """A prompt as text, its continuation, and the new tokens up to an end-of-sequence token if there was one."""

    prompt: str
    text: str
    token_ids: tuple[int, ...]


def generate(
    model: Model,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    hooks: Hooks = (),
    decoder: Decoder | GenerationConfig = "greedy",
    seed: int = 0,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    bos: Bos = "auto",
    use_cache: bool = True,
    progress: bool = True,
) -> list[Generation]:
    """Continue prompts with transformers' own decoding, while hooks are active on the model.

    The tokens are those that transformers' `generate` gives for a model with the same weights and edits. Prompts of a
    batch are padded on the left and masked. Hooks that are already active on the model act too, before the given ones.

    Hooks that treat all positions in the same way have the same effect with and without the cache. With the cache, a
    hook sees only the new tokens, one per step after the prompt, and a hook on the prediction head sees only the last
    position. Hooks that depend on the absolute, last or mean position need `use_cache=False`, which shows them the
    whole padded rows at every step but costs a full forward pass per token.

    Args:
        prompts: strings, or lists of token ids.
        hooks: a recipe, `[(hook name, hook function), …]`.
        decoder: `"greedy"`, `"beam"` (4 beams), `"sample"` (temperature 1), `"top_k"` (k = 50) or `"top_p"` (p = .95),
            where these numbers are our choice; or a transformers `GenerationConfig`, whose end-of-sequence and padding
            tokens are those of the tokenizer unless it sets its own.
        seed: the seed for sampling in this call. The caller's random state does not change. What is drawn for a prompt
            depends on its batch, and so on `batch_size` and the other prompts.
        max_new_tokens: the largest number of new tokens. Default: that of the config, else 50.
        batch_size: the number of prompts per batch. Default: as many as have at most 8,192 tokens together with their
            continuations, where every beam counts.
        bos: put the beginning-of-sequence token before each string. `"auto"`: see `interp.corpora.batches`.
        use_cache: keep keys and values from step to step.
        progress: whether to show a progress bar.

    Returns one `Generation` per prompt, or as many as the config's `num_return_sequences`, in order.

    Raises:
        ValueError: the model is an encoder; there are no prompts, or a prompt is empty or does not fit into the context
            with its continuation; prompts are strings but there is no tokenizer; the decoder is unknown, or a config
            has an option that cannot work here (static caches, assisted, contrastive and group-beam decoding …); or the
            seed lies outside 0 … 2**63 − 1.
        TypeError: `model` is not a model, or `prompts` is not a list of strings or of lists of whole numbers.
        RuntimeError: a hook never fired.

    Examples:
        >>> import interp
        >>> model, prompts = interp.load("tiny-gpt2"), ["They came to the", "The boy"]
        >>> recipe = interp.hooks.scale_bias(model, "ln", 0)
        >>> texts = generate(model, prompts, hooks=recipe, decoder="top_p", max_new_tokens=5, seed=1, progress=False)
        >>> [text.prompt for text in texts]
        ['They came to the', 'The boy']
        >>> texts == generate(model, prompts, hooks=recipe, decoder="top_p", max_new_tokens=5, seed=1, progress=False)
        True
    """
    check_decodes(model)
    if batch_size is not None:
        batch_size = whole_number(batch_size, "batch_size", least=1)
    seed = check_seed(seed)
    config = resolved(model, decoder, max_new_tokens)
    rows = _rows(model, prompts, bos, config.max_new_tokens)
    config.use_cache = use_cache and config.use_cache
    return decode(model, rows, config, hooks, seed=seed, batch_size=batch_size, progress=progress)


def check_decodes(model: Model) -> None:
    """Raise ValueError for an encoder, for a decoder without blocks, and for one that cannot read the tokens it
    predicts.
    """
    if is_encoder(model):
        raise ValueError(NO_DECODER)
    if not model.cfg.n_layers:
        raise ValueError("this model has no blocks (n_layers=0), so no keys and values to keep; it cannot be decoded")
    check_vocabulary(model, exact=True)
    check_weights(model)


def decode(
    model: Model,
    rows: list[list[int]],
    config: GenerationConfig,
    hooks: Hooks,
    *,
    seed: int,
    batch_size: int | None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> list[Generation]:
    """Run `generate` with checked token ids and a resolved config. Resumes after the batches that are in a
    checkpoint."""
    n_per_prompt = config.num_return_sequences or 1
    if batch_size is None:
        at_once = batch_rows(max(map(len, rows)) + config.max_new_tokens)
        n_batches = ceil(len(rows) / max(1, at_once // max(n_per_prompt, config.num_beams or 1)))
        batch_size = ceil(len(rows) / n_batches)
    device = model.W_U.device
    random = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    bar = tqdm(total=len(rows), unit="prompt", disable=None if progress else True, desc="generating")
    other_hooks = hooks_of_others(model)
    # the process has one random generator, so other threads wait, and its state is restored for them
    randomness = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    with bar, _sampling, randomness, _generates(model) as call:
        torch.manual_seed(seed)
        saved, _ = ({}, 0) if checkpoint is None else checkpoint.load()
        if saved:
            random.set_state(saved.pop("random"))
        new = [saved[str(number)].tolist() for number in range(len(saved))]
        bar.update(len(new) // n_per_prompt)
        for start in range(len(new) // n_per_prompt, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            with firing(model, hooks, expected=other_hooks):
                new += decode_batch(call, batch, config, device, reads_source=view(model).reads_source)
            if checkpoint is not None:
                tokens = {str(number): torch.tensor(token_ids) for number, token_ids in enumerate(new)}
                tokens["random"] = random.get_state()
                checkpoint.save(tokens, len(new))
            bar.update(len(batch))
    return [continuation(model, rows[number // n_per_prompt], token_ids) for number, token_ids in enumerate(new)]


@contextmanager
def _generates(model: Any) -> Iterator[Callable[..., Tensor]]:
    """transformers' `generate` for the model that a bridge wraps, or for a shell around a hooked model.

    A transformers model has its own defaults (such as a temperature), which are ignored during this context.
    """
    wrapped = view(model).wrapped
    if wrapped is None:
        from interp.instruments.adapter import HookedCache, Shell

        shell: Any = Shell(model)

        def generate(ids: Tensor, generation_config: GenerationConfig, **options: Any) -> Any:
            cache = {"past_key_values": HookedCache()} if generation_config.use_cache else {}
            return shell.generate(ids, generation_config=generation_config, **options, **cache)

        yield generate
        return
    own_config = wrapped.generation_config
    wrapped.generation_config = GenerationConfig(decoder_start_token_id=own_config.decoder_start_token_id)
    try:
        yield wrapped.generate
    finally:
        wrapped.generation_config = own_config


def resolved(model: Model, decoder: Decoder | GenerationConfig, max_new_tokens: int | None) -> GenerationConfig:
    """Copy the config, or that of a preset, with the length and this model's special tokens filled in.

    Raises ValueError for an unknown decoder, for an option that cannot work here, and if two different lengths are
    given.
    """
    if isinstance(decoder, GenerationConfig):
        config = deepcopy(decoder)
    elif decoder in PRESETS:
        config = GenerationConfig(**PRESETS[decoder])
    else:
        raise ValueError(f"unknown decoder {decoder!r}; expected {', '.join(DECODERS)} or a GenerationConfig")
    wrong = []
    for name, value in config.to_dict().items():
        is_set = value is not None and value is not False
        if is_set and name not in _SUPPORTED and _OFF.get(name) != value:
            wrong.append(f"{name}={value!r}")
    if wrong:
        listing = ", ".join(wrong)
        raise ValueError(
            f"this GenerationConfig has settings that a hooked model does not support ({listing}); leave them out"
        )
    token_id = config.max_new_tokens
    if max_new_tokens is not None and token_id not in (None, max_new_tokens):
        raise ValueError(f"max_new_tokens is {max_new_tokens} here and {token_id} in the GenerationConfig; give one")
    new = (token_id or NEW_TOKENS) if max_new_tokens is None else max_new_tokens
    config.max_new_tokens = whole_number(new, "max_new_tokens", least=1)
    for name in ("eos_token_id", "pad_token_id"):
        token_id = getattr(model.tokenizer, name, None)
        if getattr(config, name) is None and token_id is not None and token_id < model.cfg.d_vocab:
            setattr(config, name, token_id)
    if config.pad_token_id is None:
        config.pad_token_id = 0  # always masked
    return config


def _rows(model: Model, prompts: Sequence[str] | Sequence[Sequence[int]], bos: Bos, new: int) -> list[list[int]]:
    """The token ids of each prompt. Each must leave room in the context for `new` tokens."""
    expected = "expected a list of prompts, strings or lists of token ids, found"
    if isinstance(prompts, str):
        raise ValueError(f"{expected} the string {prompts!r}")
    if isinstance(prompts, bytes | Mapping | pd.DataFrame) or not isinstance(prompts, Iterable):
        raise TypeError(f"{expected} {type(prompts).__name__}")
    rows = [_row(model, prompt, bos) for prompt in prompts]
    if not rows:
        raise ValueError(f"{expected} none")
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {number} is empty; give it at least one token (bos=True adds one)")
        if min(row) < 0 or max(row) >= d_vocab:
            raise ValueError(f"prompt {number} has token ids {min(row)} … {max(row)}, expected 0 … {d_vocab - 1}")
        if (max(len(row), new) if view(model).reads_source else len(row) + new) > n_ctx:
            raise ValueError(f"prompt {number} of {len(row)} tokens and {new} new ones exceed the context of {n_ctx}")
    return rows


def _row(model: Model, prompt: str | Sequence[int], bos: Bos) -> list[int]:
    if not isinstance(prompt, str):
        if bos not in (False, "auto"):
            raise ValueError("token ids are read as they are; add bos to them yourself")
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable) or getattr(prompt, "ndim", 1) != 1:
            raise TypeError(f"a prompt must be a string or a list of token ids, found {prompt!r}")
        return [whole_number(token_id, "a token id") for token_id in prompt]
    (ids,) = encode(tokenizer_of(model), [unicode_text(prompt, "a prompt")])
    return framed(ids, *frame(model, bos).alone)


def decode_batch(
    generate: Callable[..., Tensor],
    rows: list[list[int]],
    config: GenerationConfig,
    device: torch.device,
    *,
    reads_source: bool = False,
) -> list[list[int]]:
    """Continue each row with transformers' `generate`, up to an end-of-sequence token if there is one."""
    ids, mask = padded(rows, config.pad_token_id, left=not reads_source)
    ids = ids.to(device)
    mask = mask.to(device)
    config.use_cache = config.use_cache is not False
    before = 1 if reads_source else ids.shape[1]  # the decoder of an encoder-decoder starts from a start token
    new = generate(ids, attention_mask=mask, generation_config=config)[:, before:].tolist()
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for token_ids in new:
        for n, token_id in enumerate(token_ids, 1):
            if token_id in ends:
                del token_ids[n:]
                break
    return new


def continued(size: Shape, rows: int, prompt: int, new: int, *, step: int) -> Pass:
    """Estimate the cost of continuing so many rows of a prompt together, with keys and values kept, from the shape of a
    model."""
    cache = 4 * size.n_layers * 2 * size.n_key_value_heads * size.d_head
    return Pass(
        what="generated text", text="generated text", step=step, head=True, share=1 / prompt, size=(rows, prompt),
        per_token=cache * (prompt + new) / prompt, per_batch=4 * 4 * rows * size.d_vocab,
    )  # fmt: skip


def continuation(model: Model, row: list[int], new: list[int]) -> Generation:
    """Return new tokens as text: what they add to the text of the prompt, so that no space is lost between the two."""
    before, full_text = _text(model, row), _text(model, row + new)
    after = full_text[len(before) :] if full_text.startswith(before) else _text(model, new)
    return Generation(before, after, tuple(new))


def _text(model: Model, ids: list[int]) -> str:
    if model.tokenizer is None:
        return " ".join(token_names(model, ids))
    return str(model.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

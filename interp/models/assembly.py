"""Builds a TransformerLens model from transformers' weights one block at a time, checking each against transformers.

Weights stay mapped in their files until it is their block's turn. Then transformers' block and TransformerLens' block
run in float32 on the same input. If they agree, the block gets its own memory, in the requested type and on the
requested device. So memory never holds more than the model itself and one block in float32.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor

from interp.models.beginning import remember_beginning
from interp.models.drafts import Bridged, Draft, Hooked
from interp.models.pretrained import MASKED, Stored, check_finite, context_of
from interp.models.sites import Model, view
from interp.models.spread import DeviceMap, Placement, placed
from interp.models.streaming import blocks_of, streamed
from interp.models.views import Tokens

__all__ = ["PARITY_TOLERANCE", "WronglyConverted", "assembled"]

PARITY_TOLERANCE = 1e-4
"""The largest difference of log-probabilities from transformers that is accepted in float32."""

_OF_HALF = {torch.float16: 0.03, torch.bfloat16: 0.25}
"""The largest root mean square of those differences that is accepted for less precise types, which round more."""
_OF_BLOCK = 1e-3
"""The largest accepted error of a block in float32, relative to what the block adds."""
_MAPPINGS = 32
"""The files are mapped again at most this many times, so that what was read from them does not stay in memory."""
_LENGTH = 32
_UNSUPPORTED = "TransformerLens does not support this model as it is configured"


class WronglyConverted(ValueError):
    """TransformerLens cannot convert a model as it is configured."""


@torch.no_grad()
def assembled(name: str, stored: Stored, dtype: torch.dtype, where: torch.device | DeviceMap) -> Model:
    """A model in the requested type and on the requested devices, checked block by block and then end to end.

    Raises WronglyConverted if it differs from transformers, and the errors of `Stored.checked`.
    """
    source, tokenizer = stored.checked(), stored.tokenizer()
    batch = _trial(stored.config)
    with tempfile.TemporaryDirectory(prefix="model-") as neutral:
        make = Hooked if stored.backend == "hooked" else Bridged
        try:
            draft: Draft = make(source, tokenizer, stored.config, neutral)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            what = f"{name} cannot be converted by TransformerLens as it is configured"
            raise WronglyConverted(f"{what}: {reason}") from error
        del source
        placement = placed(draft.reference, where, dtype)
        expected = _Assembly(name, stored, draft, batch, dtype, placement).run()
    model = draft.model
    remember_beginning(model.tokenizer, tokenizer)
    del draft  # together with what was read from the files
    placement.finish(model, dtype)
    found = view(model).run(batch.to(model.W_U.device), None).float().cpu().log_softmax(-1)
    differences = (found - expected.log_softmax(-1))[batch.mask.bool()]
    apart = float(differences.square().mean().sqrt() if dtype in _OF_HALF else differences.abs().max())
    allowed = _OF_HALF.get(dtype, PARITY_TOLERANCE)
    if not apart < allowed:
        what = f"log-probabilities differ from transformers by {apart:.1e} (allowed {allowed:.0e})"
        raise WronglyConverted(f"{name} was converted wrongly: {what}; {_UNSUPPORTED}")
    return model


def _trial(config: Any) -> Tokens:
    """Random tokens to compare models on; for an encoder, with a padded row."""
    length = min(context_of(config) or _LENGTH, _LENGTH)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    if config.model_type in MASKED:
        mask[1, length // 2 :] = 0
    return Tokens(tokens, mask, tokens, mask) if config.is_encoder_decoder else Tokens(tokens, mask)


class _Assembly:
    """A forward pass of transformers' model in float32, during which the blocks of a draft are checked and settled."""

    def __init__(
        self, name: str, stored: Stored, draft: Draft, batch: Tokens, dtype: torch.dtype, placement: Placement
    ) -> None:
        self.name, self.stored, self.draft, self.batch, self.where = name, stored, draft, batch, (dtype, placement)
        self.blocks = blocks_of(draft.reference)
        self.total = sum(one.numel() for one in draft.reference.parameters())
        self.settled: list[str] = []
        self.read = 0

    def run(self) -> Tensor:
        """The logits of transformers' model, in float32."""
        batch, draft = self.batch, self.draft
        inputs = {"decoder_input_ids": batch.tokens} if draft.reference.config.is_encoder_decoder else {}
        with streamed(draft.reference, self.compare, self.finish):
            output = draft.reference(batch.tokens, attention_mask=batch.mask, use_cache=False, **inputs)
        for name, parameter in draft.reference.named_parameters():
            if not name.startswith(tuple(self.settled)):
                check_finite(self.stored.source, name, parameter)
        for part in draft.parts:
            self.renew()
            draft.settle(part, *self.where)
        return (output.logits if "logits" in output else output.prediction_logits).float()

    def compare(self, block: str, arguments: tuple[Any, ...], named: dict[str, Any], expected: Tensor) -> None:
        """Check a block on the input that transformers' block was given."""
        for name, parameter in self.blocks[block].named_parameters():
            check_finite(self.stored.source, f"{block}.{name}", parameter)
        try:
            found = [self.draft.output(block, self.batch, arguments, named)]
            with self.draft.read_patterns():
                found.append(self.draft.output(block, self.batch, arguments, named))
        except Exception as error:
            raise WronglyConverted(f"{self.name}: {block} cannot run in TransformerLens: {error}") from error
        x = arguments[0] if arguments else named["hidden_states"]
        size = (expected - x).norm(dim=-1) + 0.01 * expected.norm(dim=-1)
        errors = (torch.stack(found) - expected).norm(dim=-1) / size
        apart = float(errors[:, self.batch.mask.bool()].max())
        if not apart < _OF_BLOCK:
            what = f"{block} differs from transformers by {apart:.1e} of what it adds (allowed {_OF_BLOCK:.0e})"
            raise WronglyConverted(f"{self.name} was converted wrongly: {what}; {_UNSUPPORTED}")

    def finish(self, block: str) -> None:
        """Settle a block, and map the files again when enough of them has been read."""
        self.draft.settle(block, *self.where)
        self.settled.append(f"{block}.")
        self.read += sum(one.numel() for one in self.blocks[block].parameters())
        if self.read > self.total / _MAPPINGS:
            self.renew()

    def renew(self) -> None:
        """Release what was read from the files."""
        self.read = 0
        self.draft.renew(self.stored, tuple(self.settled))

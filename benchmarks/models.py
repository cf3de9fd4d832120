"""Models with random weights in transformers and in interp, in the shapes that are measured."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers

import interp
from interp.models.sites import Model
from interp.support.paths import BUNDLED

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
GPT2 = "GPT-2, 124M"
BERT = "BERT-base's shape"
CLASSES = {"one": [1], "ten": [*range(2, 12)], "hundred": [*range(12, 112)]}  # all other tokens are the fourth class


@contextmanager
def random_model(
    config: transformers.PretrainedConfig, tokenizer: str | None = None
) -> Iterator[tuple[Model, transformers.PreTrainedModel]]:
    """The same random weights in interp and in transformers, without zero biases; with a bundled tokenizer if named."""
    torch.manual_seed(0)
    kind = transformers.AutoModelForMaskedLM if config.model_type == "bert" else transformers.AutoModelForCausalLM
    hf = kind.from_config(config).eval()
    for name, parameter in hf.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0, 0.3 if "ln_f" in name else 0.02)
    with tempfile.TemporaryDirectory() as directory:
        hf.save_pretrained(directory)
        if tokenizer is not None:
            transformers.AutoTokenizer.from_pretrained(BUNDLED / tokenizer).save_pretrained(directory)
        yield interp.load(directory, device="cpu"), hf


def tokens(n: int, length: int, vocabulary: int) -> torch.Tensor:
    """Random token ids `[n, length]`."""
    return torch.randint(1, vocabulary, (n, length), generator=torch.Generator().manual_seed(0))

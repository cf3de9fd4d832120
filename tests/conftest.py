"""Toy models and data for all tests. Biases are random everywhere: toys start with zero ones, which test nothing."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import transformers

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))
D_VOCAB = 67  # of `interp.testing.toy_tokenizer`
SIZES: dict[str, Any] = {"vocab_size": D_VOCAB, "max_position_embeddings": 24, "hidden_size": 16}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture(autouse=True)
def _quiet_libraries() -> Iterator[None]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="Hooked")
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"no real models and data at {SHARED}; set INTERP_SHARED")
    return SHARED


def run_command(arguments: Sequence[str]) -> int:
    """Run a line of the command line, or of `tools/train.py` where it begins with `train`; the exit code."""
    from training.command import main as train

    from interp.cli import main

    return train(arguments[1:]) if arguments[0] == "train" else main(arguments)


HF_MODELS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=D_VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=4)
    ),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5)),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            **{k: v for k, v in SIZES.items() if k != "intermediate_size"}, ffn_dim=64, word_embed_proj_dim=16
        )
    ),
    "gptj": lambda: transformers.GPTJForCausalLM(
        transformers.GPTJConfig(vocab_size=D_VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=4, rotary_dim=2)
    ),
    "gpt_neo": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=D_VOCAB,
            max_position_embeddings=24,
            hidden_size=16,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=6,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, num_key_value_heads=2)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
}


@pytest.fixture(scope="session")
def hf_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A saved random model of a kind, with a tokenizer; made once."""
    made: dict[str, Path] = {}

    from interp.testing import randomise, toy_tokenizer

    def directory(kind: str) -> Path:
        if kind not in made:
            path = tmp_path_factory.mktemp("models") / f"random-{kind}"
            torch.manual_seed(0)
            model = HF_MODELS[kind]()
            randomise(model)
            model.save_pretrained(path)
            toy_tokenizer().save_pretrained(path)
            made[kind] = path
        return made[kind]

    return directory


@pytest.fixture
def load_toy(hf_directory: Callable[[str], Path]) -> Callable[[str], Any]:
    """A TransformerLens model of a kind, loaded by interp from its directory."""
    import interp

    return lambda kind, **options: interp.load(hf_directory(kind), **options)


@pytest.fixture
def texts() -> list[str]:
    from interp.testing import WORDS

    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, len(WORDS) + 1)
    draw = lambda n: rng.choice(WORDS, size=n, p=frequency / frequency.sum())  # noqa: E731
    return [" ".join(draw(int(n))) for n in rng.integers(3, 40, size=30)]


@pytest.fixture(scope="module")
def models_made() -> dict[str, Any]:
    return {}


@pytest.fixture
def workshop(tmp_path: Path, hf_directory: Callable[[str], Path], models_made: dict[str, Any], texts: list[str]) -> Any:
    """Where hostile input is made."""
    from hostile import Workshop

    return Workshop(tmp_path, hf_directory, models_made, texts)


@pytest.fixture
def untyped() -> Iterator[None]:
    """As users have it: nobody checks the types of arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

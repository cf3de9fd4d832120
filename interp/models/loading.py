"""Loading models with raw weights, checked against transformers."""

import copy
import json
import logging
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from transformer_lens import (
    HookedEncoder,
    HookedTransformer,
    HookedTransformerConfig,
    loading_from_pretrained as tl_loading,
)
from transformer_lens.supported_models import MODEL_ALIASES
from transformer_lens.utilities.activation_functions import SUPPORTED_ACTIVATIONS, gelu_new

from interp.checks import check_seed
from interp.models.identity import Origin, origin
from interp.models.running import running
from interp.models.sites import Model, check_model, is_encoder
from interp.paths import hub_answers, model_directory, printable

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "gpt_neo": "GPTNeoForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "bert": "BertForMaskedLM",
}
"""Supported `model_type`s of a Hugging Face `config.json`, and the class each is read with."""

PARITY_TOLERANCE = 1e-4
"""Largest difference of log-probabilities from transformers with which a model is loaded."""

_FIRST_SD = 0.02
_UNUSED_BY_MLM = ("bert.pooler.", "cls.seq_relationship.")
_FLOATING = ("F64", "F32", "F16", "BF16")
_NUMBER = re.compile(r"\.(\d+)\.")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")


def load(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    checkpoint: int | None = None,
) -> Model:
    """Load a language model with raw (unfolded, uncentred) weights and check it against transformers.

    Causal models come as `HookedTransformer`, BERT as `HookedEncoder`. Weights are read from safetensors only,
    no pickle is opened and no remote code is run. The conversion is checked in float32: the largest difference
    of log-softmax from the transformers model on random tokens (padded too for BERT) must stay below 1e-4.
    Matrices are laid out in memory so that TransformerLens does not copy them at each call. Both models are in
    memory during the check.

    Args:
        name_or_path: a bundled model (`interp.paths.bundled_models()`), a local Hugging Face directory, a hub name
            (`"EleutherAI/pythia-70m"`) or one of TransformerLens' short names (`"gpt2-medium"`, `"pythia-70m"`).
        device: where to put it; CUDA if there is one, else the CPU.
        dtype: of the returned model, as torch has it or by its name; float32.
        revision: a branch, tag or commit of a hub repository.
        checkpoint: a training step of a model that has them (Pythia: revision `step{checkpoint}`; the Stanford
            CRFM GPT-2s: `checkpoint-{checkpoint}`).

    Raises:
        FileNotFoundError: no such directory, no config.json or no safetensors weights in it.
        ValueError: unsupported architecture, option or device, incomplete or non-finite weights, a failed parity
            check.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(f"a model is a name or a path, found {type(name_or_path).__name__}; give a string")
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, dtype)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point type such as 'bfloat16' or torch.bfloat16, found {dtype!r}")
    name = str(name_or_path)
    place = find_device(device)
    directory = model_directory(name)
    if directory is not None:
        if revision is not None or checkpoint is not None:
            raise ValueError(f"{name} is a local directory: revision and checkpoint are for hub names; leave them out")
        source = str(directory)
    else:
        source = _hub_name(name)
        revision = _checkpoint_revision(source, revision, checkpoint)
    with _quiet():
        hf_model, tokenizer, config = _read(source, revision)
        try:
            model = _convert(hf_model, tokenizer, config)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be converted by TransformerLens as it is configured: {_reason(error)}"
            ) from error
        _check_parity(model, hf_model, name)
    if directory is None:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        revision = Path(cached).parent.name if isinstance(cached, str) else revision
    del hf_model
    _lay_out(model)
    model.to(dtype or torch.float32, print_details=False)
    model.to(place, print_details=False)
    model.cfg.device = str(model.W_U.device)  # TransformerLens forgets which GPU, and moves activations to the first
    model.eval()
    model.interp_origin = Origin(printable(name), revision, directory)
    return model


def untrained(model: Model, *, seed: int = 0) -> Model:
    """A copy of a model as it might have been before training: the control for what the architecture alone can do.

    Matrices are drawn from N(0, .02²), as GPT-2's and BERT's first weights are; biases are 0, the scales of norms 1.

    Raises TypeError for what is no model, ValueError for a seed outside 0 … 2**63 − 1.
    """
    check_model(model)
    seed = check_seed(seed)
    fresh = copy.deepcopy(model)
    fresh.reset_hooks()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(fresh.named_parameters()):
            leaf = name.rpartition(".")[2].lstrip("_")
            drawn = _FIRST_SD * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.ones(()) if leaf == "w" else torch.zeros(()) if leaf.startswith("b") else drawn)
    fresh.interp_origin = Origin(f"{origin(model).name} untrained", None, None)
    return fresh


def find_device(device: str | torch.device | None) -> torch.device:
    """A device that is there. Raises ValueError for an unknown one, or for CUDA where there is none."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from None
    if torch.device(device).type == "meta":
        raise ValueError("device 'meta' holds no numbers; expected cpu, cuda, …")
    return torch.device(device)


def _hub_name(name: str) -> str:
    aliases = {alias.lower(): official for official, names in MODEL_ALIASES.items() for alias in names}
    return aliases.get(name.lower(), name)


def _checkpoint_revision(source: str, revision: str | None, checkpoint: int | None) -> str | None:
    if checkpoint is None:
        return revision
    if revision is not None:
        raise ValueError(f"both revision={revision!r} and checkpoint={checkpoint} were given; give one of them")
    if source.startswith("stanford-crfm/"):
        return f"checkpoint-{checkpoint}"
    if "pythia" in source:
        return f"step{checkpoint}"
    raise ValueError(f"{source} has no numbered checkpoints known here; give the hub branch as revision=")


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading without the libraries' chatter; what matters is checked and raised."""
    levels = {name: logging.getLogger(name).level for name in ("transformers", "root")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(None if name == "root" else name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(None if name == "root" else name).setLevel(level)


def read_config(source: str, revision: str | None = None) -> Any:
    """The transformers config of a hub name or a directory.

    Raises FileNotFoundError where there is none, ValueError for one that cannot be read or of an unsupported kind.
    """
    try:
        options: dict[str, Any] = {"revision": revision} | _reach(source)
        kind = transformers.PretrainedConfig.get_config_dict(source, **options)[0].get("model_type")
        if kind in ARCHITECTURES:
            return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:
        _refuse_unreadable(source, revision, error)
    raise ValueError(f"{source} is a {kind!r} model, which is not supported; supported are {', '.join(ARCHITECTURES)}")


def _reach(source: str) -> dict[str, bool]:
    """The option of transformers that spares its retries where the hub cannot be reached."""
    return {} if os.path.isdir(source) or hub_answers() else {"local_files_only": True}


def _read(source: str, revision: str | None) -> tuple[Any, Any, Any]:
    """The transformers model in float32, its tokenizer (None if it has none) and its config."""
    config = read_config(source, revision)
    options = {"revision": revision, "trust_remote_code": False} | _reach(source)
    _check_config(source, config)
    encoder = config.model_type == "bert"
    cls = transformers.BertForPreTraining if encoder else transformers.AutoModelForCausalLM
    if os.path.isdir(source):
        _check_shards(Path(source))
        _check_size(Path(source), config, cls)
    progress_bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        hf_model, info = cls.from_pretrained(
            source,
            **options,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        _refuse_unreadable(source, revision, error)
    finally:
        if progress_bars:
            transformers.utils.logging.enable_progress_bar()
    _check_stored(source, revision, [name for name, _ in hf_model.named_parameters()])
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(_UNUSED_BY_MLM))
    if missing:
        raise ValueError(
            f"{source} lacks weights that a {ARCHITECTURES[config.model_type]} needs: {', '.join(missing[:4])}"
            f"{' …' if len(missing) > 4 else ''}; was it saved without its language-model head?"
        )
    blocks = {int(number) for key in info["unexpected_keys"] for number in _NUMBER.findall(key)}
    if blocks and max(blocks) >= config.num_hidden_layers:
        raise ValueError(
            f"{source} has weights of block {max(blocks)}, but its config.json says {config.num_hidden_layers} blocks; "
            "one of the two belongs to another model"
        )
    for key, value in hf_model.named_parameters():
        if key.startswith(_UNUSED_BY_MLM) and key in info["missing_keys"]:
            value.data.zero_()
        elif not torch.isfinite(value).all():
            raise ValueError(f"{source}: weight {key} has NaN or infinite values; the checkpoint is damaged")
    return hf_model.eval(), _read_tokenizer(source, options), config


def _read_tokenizer(source: str, options: dict[str, Any]) -> Any:
    """The tokenizer, None if there is none; transformers makes an empty one up for a directory without."""
    local = os.path.isdir(source)
    if local and not any((Path(source) / name).exists() for name in _VOCABULARIES):
        return None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:
        if local:
            raise ValueError(
                f"{source} has a tokenizer that cannot be read ({type(error).__name__}: {error}); save it again, or "
                "remove its files to load the model without one"
            ) from error
        return None
    return None if len(tokenizer) < 3 else tokenizer


def _refuse_unreadable(source: str, revision: str | None, error: Exception) -> NoReturn:
    if os.path.isdir(source):
        raise ValueError(f"{source} cannot be read as a transformers model: {error}") from error
    at = f" at revision {revision!r}" if revision else ""
    raise FileNotFoundError(
        f"model {source!r}{at} is no local directory, and its safetensors could not be downloaded from the hub nor "
        f"found in its cache: {str(error).splitlines()[0]}"
    ) from error


def _check_shards(directory: Path) -> None:
    """Refuse an index of shards of which one is missing or lies elsewhere."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file() or (directory / "model.safetensors").is_file():
        return
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        strange = [shard for shard in shards if Path(shard).name != shard]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is damaged ({type(error).__name__}: {error}); save the model again") from None
    if strange:
        raise ValueError(f"{index} names weights outside its directory: {strange[0]!r}; put them beside it")
    missing = [shard for shard in shards if not (directory / shard).is_file()]
    if missing:
        raise FileNotFoundError(f"{directory} lacks {', '.join(missing)}, of the weights that its index names")


def _check_stored(source: str, revision: str | None, parameters: Sequence[str]) -> None:
    """Refuse weights that are stored as anything but floating-point numbers: codes of a quantised model, say."""
    for path in _weight_files(source, revision):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                dtype = file.get_slice(name).get_dtype()
                if dtype not in _FLOATING and any(_is_called(name, parameter) for parameter in parameters):
                    raise ValueError(
                        f"{source}: weight {name} is stored as {dtype}, expected {', '.join(_FLOATING)}; is the model "
                        "quantised? Save its weights as floating-point numbers"
                    )


def _weight_files(source: str, revision: str | None) -> list[Path]:
    """The safetensors files of a directory, or of the hub's cache, where they are once a model has been loaded."""
    if os.path.isdir(source):
        return sorted(Path(source).glob("*.safetensors"))
    config = try_to_load_from_cache(source, "config.json", revision=revision)
    return sorted(Path(config).parent.glob("*.safetensors")) if isinstance(config, str) else []


def _is_called(stored: str, parameter: str) -> bool:
    """Whether a stored name is a parameter's, with or without the name of the model before it."""
    stored = re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", stored))
    return f".{parameter}".endswith(f".{stored}") or f".{stored}".endswith(f".{parameter}")


def _check_size(directory: Path, config: Any, cls: Any) -> None:
    """Refuse a config.json of a model far larger than its weights, before memory is taken for it."""
    sizes = []
    try:
        for path in directory.glob("*.safetensors"):
            with safe_open(path, "np") as file:
                sizes += [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
        if config.num_hidden_layers <= len(sizes):
            with torch.device("meta"):
                empty = cls(config) if cls is transformers.BertForPreTraining else cls.from_config(config)
            if sum(parameter.numel() for parameter in empty.parameters()) <= 4 * sum(sizes):
                return
    except Exception as error:
        _refuse_unreadable(str(directory), None, error)
    raise ValueError(
        f"{directory}/config.json describes a model far larger than its weights, which hold {sum(sizes):,} numbers; it "
        "belongs to another model, or leaves sizes out"
    )


def _check_config(source: str, config: Any) -> None:
    """Refuse the options that TransformerLens would convert without a word and wrongly, activations that it does not
    know, and a model without blocks."""
    if config.num_hidden_layers < 1:
        raise ValueError(f"{source} has {config.num_hidden_layers} blocks by its config.json; expected at least 1")
    found: dict[str, object] = {}
    if config.model_type == "bert":
        found = {"hidden_act": config.hidden_act} if config.hidden_act != "gelu" else {}
        if getattr(config, "position_embedding_type", "absolute") not in (None, "absolute"):
            found["position_embedding_type"] = config.position_embedding_type
        if config.is_decoder:
            found["is_decoder"] = True
    elif config.model_type == "llama":
        found = {key: True for key in ("attention_bias", "mlp_bias") if getattr(config, key, False)}
        if getattr(config, "head_dim", None) not in (None, config.hidden_size // config.num_attention_heads):
            found["head_dim"] = config.head_dim
    elif config.model_type == "qwen2" and config.use_sliding_window:
        found = {"use_sliding_window": True}
    elif config.model_type == "gpt2" and config.n_inner not in (None, 4 * config.n_embd):
        found = {"n_inner": config.n_inner}
    for name in ("activation_function", "hidden_act"):
        if getattr(config, name, "gelu") not in SUPPORTED_ACTIVATIONS:
            found[name] = getattr(config, name)
    if found:
        options = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise ValueError(
            f"{source} is a {config.model_type} model with {options}, which TransformerLens would convert "
            "wrongly; only the standard setting of that option is supported"
        )


def _convert(hf_model: Any, tokenizer: Any, config: Any) -> Model:
    """The TransformerLens model with the weights of a transformers model, nothing folded or centred.

    TransformerLens reads the config and the tokenizer again by their name (without its revision), so both go to a
    directory of their own.
    """
    side = "right" if tokenizer else None
    config.architectures = [ARCHITECTURES[config.model_type]]
    if config.model_type == "gpt2":
        config.n_ctx = config.n_positions
    with tempfile.TemporaryDirectory(prefix="model-") as neutral:
        config.save_pretrained(neutral)
        tl_config = tl_loading.get_pretrained_model_config(_Path(neutral), hf_cfg=config.to_dict(), device="cpu")
        state = tl_loading.get_pretrained_state_dict(neutral, tl_config, hf_model=hf_model)
        if (positions := getattr(config, "max_position_embeddings", None)) is not None:
            tl_config.n_ctx = min(tl_config.n_ctx, positions)  # of Mistral it assumes 2,048
        tl_config.tokenizer_name = None
        tl_config.model_name = config.model_type
        if config.model_type == "bert":
            encoder = HookedEncoder(tl_config, tokenizer, move_to_device=False)
            encoder.load_state_dict(state, strict=False)
            return encoder
        model = HookedTransformer(tl_config, _neutral_tokenizer(tokenizer, neutral), default_padding_side=side)
    if model.tokenizer is not None:
        model.tokenizer.name_or_path = config.model_type  # in which TransformerLens looks for "gemma", too
    model.load_and_process_state_dict(
        state,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
        refactor_factored_attn_matrices=False,
    )
    return model


class _Path(str):
    """A path in which TransformerLens does not look for the names of models ("llama", "gemma"), of which any folder
    may have one in its name."""

    def lower(self) -> str:
        return ""

    def __contains__(self, part: object) -> bool:
        return False


def _neutral_tokenizer(tokenizer: Any, directory: str) -> Any:
    if tokenizer is None:
        return None
    tokenizer.save_pretrained(directory)
    return transformers.AutoTokenizer.from_pretrained(directory)


def _reason(error: Exception) -> str:
    """What an error says, or its kind where it says nothing."""
    return str(error).strip() or type(error).__name__


@torch.no_grad()
def _check_parity(model: Model, hf_model: Any, name: str) -> None:
    """Compare log-softmax with transformers on random tokens; for BERT on padded rows too."""
    generator = torch.Generator().manual_seed(0)
    cfg: HookedTransformerConfig = model.cfg
    length = min(cfg.n_ctx, 64)
    tokens = torch.randint(cfg.d_vocab, (2, length), generator=generator)
    mask = torch.ones_like(tokens)
    with running(model):
        if is_encoder(model):
            mask[1, length // 2 :] = 0
            ours = model(tokens, one_zero_attention_mask=mask)
            theirs = hf_model(tokens, attention_mask=mask).prediction_logits
        else:
            ours = model(tokens, attention_mask=mask)
            theirs = hf_model(tokens).logits
    error = (ours.log_softmax(-1) - theirs.log_softmax(-1))[mask.bool()].abs().max().item()
    if not error < PARITY_TOLERANCE:
        raise ValueError(
            f"{name} was converted wrongly: log-probabilities differ from transformers by {error:.1e} (allowed "
            f"{PARITY_TOLERANCE:.0e}); TransformerLens does not support this model as it is configured"
        )


def _lay_out(model: Model) -> None:
    """Store each matrix in the memory order in which TransformerLens multiplies it, so no call copies it.

    Shapes and values stay as they are; only the strides change. And GPT-2's GELU, which TransformerLens writes out in
    eight operations, becomes torch's own of the same formula.
    """
    model.unembed.W_U.data = model.W_U.data.T.contiguous().T
    for block in model.blocks:
        if getattr(getattr(block, "mlp", None), "act_fn", None) is gelu_new:
            block.mlp.act_fn = partial(torch.nn.functional.gelu, approximate="tanh")
        for name, parameter in block.attn.named_parameters():
            if name.endswith(("W_Q", "W_K", "W_V")):
                parameter.data = parameter.data.mT.contiguous().mT
            elif name.endswith("W_O"):
                parameter.data = parameter.data.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        if model.cfg.gated_mlp:
            for name, parameter in block.mlp.named_parameters():
                if name.startswith("W_"):
                    parameter.data = parameter.data.T.contiguous().T

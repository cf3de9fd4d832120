"""Reads config, weights and tokenizer of a model with transformers, and refuses damaged or unsupported ones."""

import copy
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.utils.peft_utils import find_adapter_config_file

from interp.models.loading.gguf_files import config_of, header, read_with
from interp.support.choices import Backend
from interp.support.paths import bundled_models, cached, check_no_adapter, hub_answers, is_gguf
from interp.support.words import meant

__all__ = [
    "HOOKED",
    "MASKED",
    "SEQ2SEQ",
    "Stored",
    "check_finite",
    "context_of",
    "headless",
    "model_class",
    "on_hub",
    "place",
    "read_config",
    "set_buffers",
    "why_not_converted",
]
__dir__ = __all__.copy

HOOKED = {
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
"""The `model_type`s of a Hugging Face `config.json` that also exist as a `HookedTransformer` or `HookedEncoder`."""

MASKED = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM"}
"""Encoders that TransformerLens knows, by `model_type`."""

_UNUSED_BY_MLM = ("bert.pooler.", "cls.seq_relationship.")
_BERT_HEADS = ("BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel")
_OF_DPR = {r"^(question_encoder|ctx_encoder|span_predictor\.encoder)\.bert_model\.": "bert."}
"""The names of the weights of a DPR encoder, and of the BERT that it is."""
_FLOATING = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BUFFER = re.compile(r"(inv_freq|masked_bias|\b(attn|attention)\.bias)$")  # buffers of older checkpoints
_VOCABULARIES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
_JAPANESE = ("fugashi", "unidic_lite", "ipadic")


def place(source: str, revision: str | None) -> Path | None:
    """Find the directory of a model. For a hub name, its directory in the hub's cache once it has been downloaded."""
    if os.path.isdir(source):
        return Path(source)
    config = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def read_config(source: str, revision: str | None = None) -> Any:
    """Read the transformers config of a hub name or a directory.

    Raises FileNotFoundError if there is none, and ValueError if it cannot be read or is of an unsupported kind, and if
    there is an adapter.
    """
    options: dict[str, Any] = dict(revision=revision, **_offline_options(source))
    if is_gguf(source):
        header(source)
    elif (adapter := find_adapter_config_file(source, **options)) is not None:
        check_no_adapter(Path(adapter).parent, None if os.path.isdir(source) else source)
    try:
        config = config_of(source) if is_gguf(source) else None
        kind = config and config.model_type
        if config is None:
            kind = transformers.PretrainedConfig.get_config_dict(source, **options)[0].get("model_type")
        if kind == "dpr" or _class_name(kind) is not None:
            if config is None:
                config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
            if kind == "dpr":
                kind = "bert"
                settings = config.to_dict()
                settings.update(architectures=["BertModel"], model_type=kind)
                config = transformers.BertConfig(**settings)
            if config.get_text_config() is not config and not config.is_encoder_decoder:
                raise ValueError(f"{kind!r} is a multimodal model; save only its text model")
            declared = (config.architectures or [""])[0]
            if config.is_encoder_decoder == (kind in SEQ2SEQ) and (
                kind in MASKED or not declared.endswith("ForMaskedLM")
            ):
                return config
    except Exception as error:
        _refuse_unreadable(source, revision, error)
    expected = f"a causal language model that transformers has, {', '.join(MASKED)}, or {', '.join(SEQ2SEQ)}"
    raise ValueError(f"{source} is a {kind!r} model, which is not supported; expected {expected}")


def on_hub(name: str, revision: str | None, checkpoint: int | None) -> tuple[str, str | None]:
    """Return the hub's own name of a model, and the revision of a checkpoint."""
    from transformer_lens.supported_models import MODEL_ALIASES

    aliases = {}
    for official, names in MODEL_ALIASES.items():
        for alias in names:
            aliases[alias.lower()] = official
    source = aliases.get(name.lower(), name)
    if checkpoint is None:
        return source, revision
    if revision is not None:
        raise ValueError(f"both revision={revision!r} and checkpoint={checkpoint} were given; give only one of them")
    if source.startswith("stanford-crfm/"):
        return source, f"checkpoint-{checkpoint}"
    if "pythia" in source:
        return source, f"step{checkpoint}"
    raise ValueError(f"{source} has no numbered checkpoints known here; give the hub branch as revision=")


SEQ2SEQ = {"bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration"}
"""Encoder-decoders that TransformerLens knows, by `model_type`."""


def context_of(config: Any) -> int | None:
    """Return the longest row that a model can read, or None if its config sets no limit. RoBERTa's positions begin
    after that of its padding token."""
    positions = getattr(config, "max_position_embeddings", None)
    return positions - config.pad_token_id - 1 if config.model_type == "roberta" else positions


def headless(config: Any) -> bool:
    """Whether a model is a BERT without a prediction head, such as a sentence encoder or a classifier."""
    declared = (config.architectures or [""])[0]
    is_bert_class = declared.startswith("Bert") and hasattr(transformers, declared)
    return config.model_type == "bert" and is_bert_class and declared not in _BERT_HEADS


def _class_name(kind: str | None) -> str | None:
    """The transformers class that reads a kind of model, or None if that is not a supported kind of language model."""
    classes = HOOKED | MASKED | SEQ2SEQ
    return classes.get(kind or "") or CAUSAL.get(kind or "")


def model_class(config: Any) -> Any:
    """Return the transformers class that reads a model, or None if it is not a supported kind of language model."""
    if headless(config):
        return transformers.BertModel
    return getattr(transformers, str(_class_name(config.model_type)), None)


@dataclass(frozen=True)
class Stored:
    """A model stored in a directory, a GGUF file or on the hub, for one backend. Creating this object reads nothing.

    `directory` is where its config and its weights are read from instead of from `source`, if they have been converted
    (`interp.models.loading.conversion`).
    """

    source: str
    revision: str | None
    config: Any
    backend: Backend
    directory: str | None = None

    @property
    def _place(self) -> str:
        return self.directory or self.source

    @property
    def files(self) -> list[Path]:
        """The safetensors files of its weights."""
        return _files(self._place, self.revision)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which most of the weights are stored."""
        sizes = self._sizes()
        return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)

    @property
    def n_numbers(self) -> int:
        """The number of weights according to the headers of the files; 0 if there are none.

        Raises ValueError for a damaged header or index, and FileNotFoundError if a shard is missing.
        """
        return self._sizes().total()

    def _sizes(self) -> Counter[torch.dtype]:
        """The number of weights of each type."""
        if is_gguf(self._place):
            return Counter({torch.float32: header(self._place).n_numbers})
        sizes: Counter[torch.dtype] = Counter()
        for name, (dtype, size) in _stored(self._place, self.revision).items():
            if dtype in _FLOATING and not _BUFFER.search(name):
                sizes[_FLOATING[dtype]] += size
        return sizes

    @property
    def _unused(self) -> tuple[str, ...]:
        """The beginnings of the names of weights that the model does without."""
        return ("bert.pooler.", "pooler.", "cls.") if headless(self.config) else _UNUSED_BY_MLM

    @property
    def _class(self) -> Any:
        is_hooked_bert = (self.config.model_type, self.backend) == ("bert", "hooked")
        return transformers.BertForPreTraining if is_hooked_bert else model_class(self.config)

    @property
    def _options(self) -> dict[str, Any]:
        return dict(revision=self.revision, trust_remote_code=False, **_offline_options(self.source))

    def checked(self) -> Any:
        """Return the model of `mapped`, made once per `Stored`, after checking that its weights are complete and its
        own.

        Raises FileNotFoundError if there are no weights, and ValueError for weights that cannot be read or are not
        supported.
        """
        if self.config.num_hidden_layers < 1:
            has = f"{self.config.num_hidden_layers} blocks according to its config.json"
            raise ValueError(f"{self.source} has {has}; expected at least 1")
        if os.path.isdir(self._place):
            _check_size(Path(self._place), self.config, self._class)
        model, info = self._read()
        info["missing_keys"] = [key for key in info["missing_keys"] if not key.startswith(self._unused)]
        _check_weights(self.source, _stored(self._place, self.revision), model, info)
        return model

    def buffers(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Make the buffers that `from_pretrained(dtype=dtype)` makes for this model, by name; not those in the files.

        A buffer made from a number, such as Gemma's `embed_scale`, is rounded to the type in which its model is made.
        So all of them are made again in that type, in a model whose weights take no memory.
        """
        with torch.device("meta"):
            empty = self._class._from_config(copy.deepcopy(self.config), dtype=dtype)
        unmade = dict(empty.named_non_persistent_buffers(remove_duplicate=False))
        set_buffers(empty, {name: torch.empty_like(buffer, device="cpu") for name, buffer in unmade.items()})
        empty.initialize_weights()
        return dict(empty.named_non_persistent_buffers(remove_duplicate=False))

    def mapped(self) -> Any:
        """Return the transformers model with its weights as stored, mapped from the files. A tensor is read when it is
        used. What has been read from a file counts as memory of the process until all tensors of that file are gone."""
        return self._read()[0]

    def _read(self) -> tuple[Any, dict[str, Any]]:
        types = set(self._sizes())
        options: dict[str, Any] = {"config": self.config, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # they are refused below, where their names are known
        options["key_mapping"] = _OF_DPR if self.config.model_type == "bert" else None
        options["dtype"] = reduce(torch.promote_types, types) if types else "auto"
        try:
            if is_gguf(self._place):
                model, info = read_with(self._class, self._place, **options)
            else:
                model, info = self._class.from_pretrained(self._place, **self._options, **options, use_safetensors=True)
        except Exception as error:
            _refuse_unreadable(self.source, self.revision, error)
        for name, stored, expected in sorted(info["mismatched_keys"]):
            shapes = f"{tuple(stored)}, but its config.json says {tuple(expected)}"
            raise ValueError(f"{self.source} has a weight {name} of shape {shapes}; one is of another model")
        for name, parameter in model.named_parameters():
            if name in info["missing_keys"] and name.startswith(self._unused):
                parameter.data.zero_()
        return model.eval(), info

    def tokenizer(self) -> Any:
        """Return the tokenizer, or None if there is none, where transformers itself would make up an empty one.

        Raises ValueError if it cannot be read, or needs a package that is not installed.
        """
        local = os.path.exists(self.source)
        auto = transformers.AutoTokenizer
        if local and not _has_tokenizer(Path(self.source)):
            return None
        try:
            in_file = is_gguf(self.source)
            tokenizer = read_with(auto, self.source) if in_file else auto.from_pretrained(self.source, **self._options)
        except ImportError as error:
            ours = any(name in str(error) for name in _JAPANESE)
            remedy = "pip install 'interp[ja]'" if ours else "install that package"
            raise ValueError(f"{self.source} has a tokenizer that needs another package ({error}); {remedy}") from error
        except Exception as error:
            if not local:
                return None
            reason = f"{type(error).__name__}: {error}"
            problem = f"{self.source} has a tokenizer that cannot be read ({reason})"
            raise ValueError(f"{problem}; repair or remove its files") from error
        return None if len(tokenizer) < 3 else tokenizer


def _has_tokenizer(directory: Path) -> bool:
    """Whether a GGUF file or a directory has a vocabulary, or names a tokenizer that needs none, such as ByT5's."""
    if is_gguf(directory):
        return header(directory).has_tokenizer
    for name in _VOCABULARIES:
        if (directory / name).exists():
            return True
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        return not getattr(transformers, config["tokenizer_class"]).vocab_files_names
    return False


def _offline_options(source: str) -> dict[str, bool]:
    """The option that keeps transformers from retrying if the hub cannot be reached."""
    return {} if os.path.exists(source) or hub_answers() else {"local_files_only": True}


def _refuse_unreadable(source: str, revision: str | None, error: Exception) -> NoReturn:
    if os.path.exists(source):
        reason = " ".join(str(error).split())
        reason += " is unknown; is it a value of its config.json?" if isinstance(error, KeyError) else ""
        raise ValueError(f"{source} cannot be read as a transformers model: {reason}") from error
    place = f" at revision {revision!r}" if revision else ""
    reason = f"could not be downloaded from the hub nor found in its cache: {str(error).splitlines()[0]}"
    model = f"model {source!r}{meant(source, [*bundled_models(), *cached('models')])}{place}"
    raise FileNotFoundError(f"{model} is no local directory, and its safetensors {reason}") from error


def why_not_converted(source: str, config: Any) -> str | None:
    """Return why there is no `HookedTransformer` or `HookedEncoder` of a model, or None if there is one. The reason may
    be an architecture or activation that TransformerLens lacks, or an option that it would silently convert wrongly."""
    if config.model_type not in HOOKED:
        return f"{source} is a {config.model_type!r} model, and TransformerLens has no implementation of its own for it"
    try:
        from transformer_lens import HookedTransformer  # noqa: F401
        from transformer_lens.utilities.activation_functions import SUPPORTED_ACTIVATIONS
    except ImportError:
        return "TransformerLens 4 has no HookedTransformer and no HookedEncoder; leave backend out, or install 3.9"
    d_head = config.hidden_size // max(config.num_attention_heads, 1)
    standard: dict[str, dict[str, Any]] = {
        "bert": {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False},
        "llama": {"attention_bias": False, "mlp_bias": False, "head_dim": d_head},
        "qwen2": {"use_sliding_window": False},
        "gpt2": {"n_inner": 4 * config.hidden_size},
    }
    usual = standard.get(config.model_type, {})
    wrong = [name for name in usual if getattr(config, name, None) not in (None, usual[name])]
    for name in ("activation_function", "hidden_act"):
        if name not in wrong and getattr(config, name, "gelu") not in SUPPORTED_ACTIVATIONS:
            wrong.append(name)
    if not wrong:
        return None
    options = ", ".join(f"{name}={getattr(config, name)!r}" for name in wrong)
    problem = f"{source} is a {config.model_type} model with {options}"
    return f"{problem}, which TransformerLens converts wrongly; leave backend out, or use backend='bridge'"


def _check_size(directory: Path, config: Any, cls: Any) -> None:
    """Refuse a config.json that describes a model far larger than its weights, before allocating memory for it."""
    sizes = [size for _, size in _stored(str(directory), None).values()]
    try:
        if config.num_hidden_layers <= len(sizes):
            with torch.device("meta"):
                empty = cls(config)
            if sum(parameter.numel() for parameter in empty.parameters()) <= 4 * sum(sizes):
                return
    except Exception as error:
        _refuse_unreadable(str(directory), None, error)
    weights = f"its weights, which hold {sum(sizes):,} numbers"
    raise ValueError(f"{directory}/config.json describes a model far larger than {weights}; is it another model's?")


def _files(source: str, revision: str | None) -> list[Path]:
    """The safetensors files that transformers reads: one file, or the shards that an index names. The list is empty if
    a shard of a model on the hub has not been downloaded yet.

    Raises ValueError for an index that is damaged or names files elsewhere, FileNotFoundError if a shard is missing.
    """
    if is_gguf(source) or (directory := place(source, revision)) is None:
        return []
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file() or not index.is_file():
        return [single] if single.is_file() else []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        strange = [name for name in names if Path(name).name != name]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is damaged ({type(error).__name__}: {error}); save the model again") from None
    if strange:
        raise ValueError(f"{index} names weights outside its directory: {strange[0]!r}; put them beside it")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing and os.path.isdir(source):
        raise FileNotFoundError(f"{directory} lacks {', '.join(missing)}, of the weights that its index names")
    return [] if missing else [directory / name for name in names]


def _stored(source: str, revision: str | None) -> dict[str, tuple[str, int]]:
    """The type and the number of elements of each tensor in the safetensors files of a model."""
    weights: dict[str, tuple[str, int]] = {}
    for path in _files(source, revision):
        try:
            with safe_open(path, "np") as file:
                for name in file.keys():  # noqa: SIM118
                    part = file.get_slice(name)
                    weights[name] = (part.get_dtype(), math.prod(part.get_shape()))
        except (OSError, SafetensorError) as error:
            _refuse_unreadable(source, revision, error)
    return weights


def _check_weights(source: str, stored: Mapping[str, tuple[str, int]], model: Any, info: dict[str, Any]) -> None:
    """Refuse weights that are not `stored` as floating-point numbers (codes of a quantised model, say), are missing or
    belong to another model."""
    config = model.config
    floating = ", ".join(_FLOATING)
    for name, (dtype, _) in stored.items():
        if dtype not in _FLOATING and any(_is_called(name, parameter) for parameter, _ in model.named_parameters()):
            raise ValueError(f"{source}: weight {name} is stored as {dtype}, expected {floating}; is it quantised?")
    if missing := sorted(info["missing_keys"]):
        problem = f"{type(model).__name__} needs: {', '.join(missing[:4])}{' …' * (len(missing) > 4)}"
        raise ValueError(f"{source} lacks weights that a {problem}; was it saved without its language-model head?")
    numbers = re.findall(r"\.(\d+)\.", " ".join(info["unexpected_keys"]))
    last = max(map(int, numbers), default=-1)
    if last >= config.num_hidden_layers:
        says = f"its config.json says {config.num_hidden_layers} blocks"
        raise ValueError(f"{source} has weights of block {last}, but {says}; one is of another model")


def check_finite(source: str, name: str, weight: Tensor) -> None:
    """Raise ValueError for a weight of a checkpoint that has NaN or infinite values."""
    if weight.numel() and not torch.isfinite(torch.stack(weight.detach().aminmax())).all():
        raise ValueError(f"{source}: weight {name} has NaN or infinite values; the checkpoint is damaged")


def set_buffers(model: Any, buffers: Mapping[str, Tensor]) -> None:
    """Give a model other buffers, by name."""
    for name, buffer in buffers.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, buffer)


def _is_called(stored: str, parameter: str) -> bool:
    """Whether a stored name is that of a parameter, with or without the name of the model in front."""
    stored = re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", stored))
    return f".{parameter}".endswith(f".{stored}") or f".{stored}".endswith(f".{parameter}")

"""Which questions can be asked of which architecture, tested on tiny random models against transformers alone.

    .venv-tl4/bin/python tools/architectures.py            # writes docs/models.md; make test-tl4 makes the environment

A cell is ✓ if interp's numbers equal those computed with the transformers model: with the parameter edited, from its
attentions or from its hidden states. Otherwise it is a refusal. If a number differs, the script fails.
"""

import copy
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import interp
from interp import attention, corpora, encoding, frequency, generation, hooks
from interp.analyses.attention.scores import score_contributions_at
from interp.corpora.batching import Batch
from interp.models.loading.loader import quiet
from interp.models.loading.miniature import miniature
from interp.models.loading.pretrained import CAUSAL, MASKED, model_class
from interp.models.sites import is_encoder, view
from interp.passes.reading import forward
from interp.testing import randomise, toy_tokenizer

__all__ = ["COMPLETE", "KINDS", "PAGE", "QUESTIONS", "ask", "asked", "toy"]

KINDS = (
    "gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "llama", "mistral", "qwen2", "bert",
    "roberta", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "mixtral", "olmo", "olmo2", "olmo3", "olmoe",
    "stablelm", "granite", "granitemoe", "smollm3", "gpt_oss", "falcon", "bloom", "cohere", "cohere2", "starcoder2",
    "gpt_bigcode", "codegen", "nemotron", "glm", "glm4", "exaone4", "apertus", "arcee", "ernie4_5", "seed_oss",
    "bitnet", "nanochat", "xglm", "qwen2_moe", "qwen3_moe", "hunyuan_v1_dense", "ministral3", "internlm3", "jais2",
    "vaultgemma", "modernbert-decoder",
)  # fmt: skip
"""By the config's `model_type`: first those that TransformerLens implements itself, then those that need a bridge."""

_IDS = torch.from_numpy(np.random.default_rng(0).integers(7, 67, size=(12, 22)))
_CLASS = torch.arange(9, 67, 2)
_QUIET: dict[str, Any] = {"progress": False}


def toy(kind: str, directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A tiny model of a kind, with random biases and norms, saved in a type."""
    config = miniature(CONFIG_MAPPING[kind]())
    torch.manual_seed(0)
    model = model_class(config)(config).eval()
    randomise(model)
    with quiet():
        model.to(dtype).save_pretrained(directory)
        toy_tokenizer().save_pretrained(directory)
    return directory


class Plain:
    """A transformers model, and where its parts are."""

    def __init__(self, directory: Path, kind: str) -> None:
        cls: Any = getattr(transformers, MASKED.get(kind) or CAUSAL[kind])
        with quiet():
            self.model = cls.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        self.head: Any = self.model.get_output_embeddings()
        blocks = (
            module for module in self.model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == 2
        )
        self.blocks = next(module for module in blocks if "Norm" not in type(module[0]).__name__)

    def part(self, layer: int, ending: str) -> Any:
        """The outermost module of a block whose class has this name."""
        return next(module for module in self.blocks[layer].modules() if re.search(ending, type(module).__name__))

    def bias(self, model: Any, bias_name: str) -> Any:
        """A bias of the prediction head."""
        if bias_name == "last":
            return model.get_output_embeddings().bias
        if bias_name == "fc":
            return (model.lm_head if hasattr(model, "lm_head") else model.cls.predictions.transform).dense.bias
        outside = [
            module
            for name, module in model.named_modules()
            if "Norm" in type(module).__name__ and not re.search(r"\d", name)
        ]
        return outside[-1].bias

    def mean_input(self, read: Any) -> torch.Tensor:
        """The mean input of the unembedding at the positions that are read."""
        inputs: list[torch.Tensor] = []

        def keep(h: torch.Tensor) -> torch.Tensor:
            inputs.append(h)
            return h

        with self.edited(self.head, keep):
            chosen = [batch.read for batch in read if _predictions(self.model, [batch])]
        return torch.cat([h[where] for h, where in zip(inputs, chosen, strict=True)]).double().mean(0).float()

    def run(self, tokens: torch.Tensor, **options: Any) -> Any:
        return self.model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **options)

    @contextmanager
    def edited(self, module: Any, edit: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """A context in which a module gets another input."""

        def pre(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (edit(args[0]), *args[1:]), kwargs
            return args, dict(kwargs, hidden_states=edit(kwargs["hidden_states"]))

        handle = module.register_forward_pre_hook(pre, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def word_frequency(model: Any, plain: Plain) -> None:
    """KL(u‖q) and perplexity with each bias halved, or the mean input of the unembedding if there is no b_LN."""
    read = _read(model)
    u = np.arange(1, 68) / np.arange(1, 68).sum()
    kl_table = frequency.study(model, read, unigram=np.arange(1, 68), scales=(0.5,), **_QUIET).kl
    for bias, kl, perplexity in kl_table.loc[
        kl_table["scale"] == 0.5, ["bias", "kl_unigram_model", "perplexity"]
    ].to_numpy():
        if bias == "mean":
            with plain.edited(plain.head, partial(torch.add, -0.5 * plain.mean_input(read))):
                q, nll = _predictions(plain.model, read)
        else:
            changed = copy.deepcopy(plain.model)
            plain.bias(changed, bias).mul_(0.5)
            q, nll = _predictions(changed, read)
        np.testing.assert_allclose([kl, perplexity], [(u * np.log(u / q)).sum(), np.exp(nll)], rtol=2e-5)


def attention_by_class(model: Any, plain: Plain) -> None:
    attention_table = attention.attention_by_class(model, _plain(model), key_classes={"odd": _CLASS.tolist()}, **_QUIET)
    patterns = plain.run(_IDS, output_attentions=True).attentions
    odd = torch.isin(_IDS, _CLASS).float()
    expected = [torch.einsum("bhqk,bk->hbq", pattern, odd).mean((1, 2)) for pattern in patterns]
    ours = attention_table[attention_table["key_class"] == "odd"].sort_values(["layer", "head"])
    np.testing.assert_allclose(ours["sum"], torch.cat(expected), atol=1e-5)
    visible = torch.stack([(pattern[0].abs().sum(0) > 0).float() for pattern in patterns])  # layer, query, key
    seen = torch.einsum("lqk,bk->lbq", visible, odd)
    uniform = (seen / visible.sum(-1)[:, None]).mean((1, 2)).repeat_interleave(4)
    np.testing.assert_allclose(ours["uniform"], uniform, atol=1e-5)
    pairs = seen.sum((1, 2)).repeat_interleave(4)
    np.testing.assert_allclose(ours["mean"], torch.cat(expected) * odd.numel() / pairs, atol=1e-5)


def contributions(model: Any, plain: Plain) -> None:
    """C_j of every dimension: how log α changes per unit of the dimension in the key's input, times its value."""
    query = 9
    key = 4
    row = _IDS[:1]
    ours = [score_contributions_at(model, row[0], 1, head, query, key, scaled=True) for head in range(4)]
    inputs: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        inputs.append(x)
        return x

    module = plain.part(1, "Attention$")
    with plain.edited(module, keep):
        before = plain.run(row, output_attentions=True).attentions[1].double()
    x = inputs[0][0, key]
    many = row.expand(len(x), -1)

    def nudge(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.clone()
        hidden[torch.arange(len(x)), key, torch.arange(len(x))] += 1
        return hidden

    with plain.edited(module, nudge):
        after = plain.run(many, output_attentions=True).attentions[1].double()
    other_keys = [n for n in range(query + 1) if n != key and before[0, 0, query, n] > 0]
    moved = (after / before).log()[:, :, query]  # dimension, head, key
    slopes = moved[..., key] - moved[..., other_keys].mean(-1)
    expected = slopes * x[:, None]
    np.testing.assert_allclose(torch.stack(ours, 1), expected, atol=2e-3 * float(expected.abs().max()))


def token_probability(model: Any, plain: Plain) -> None:
    """Mean predicted probabilities, and the adjusted R² of their fit on the rows of the output embeddings."""
    read = _read(model)
    fit = encoding.fit(model, read, **_QUIET)
    alpha, _ = _predictions(plain.model, read)
    np.testing.assert_allclose(fit.alpha, alpha, rtol=1e-4)
    X = plain.head.weight.double()
    y = torch.from_numpy(-np.log(alpha))
    X = torch.cat([X, torch.ones(len(X), 1)], 1)
    residual = y - X @ torch.linalg.lstsq(X, y).solution
    expected = 1 - (residual @ residual / (len(X) - X.shape[1])) / y.var()
    np.testing.assert_allclose(fit.regression.set_index("target")["adj_r2"]["-log alpha"], expected, atol=1e-5)


def neurons(model: Any, plain: Plain) -> None:
    """The loss with a neuron of the last MLP set to its mean."""
    read = _plain(model)
    effects = encoding.frequency_neurons(model, read, unigram=np.arange(1, 68), top=None, **_QUIET)
    weights: list[Any] = [module for module in plain.blocks[1].modules() if getattr(module, "weight", None) is not None]
    last = [
        module for module in weights if module.weight.ndim == 2 and view(model).d_mlp in tuple(module.weight.shape)
    ][-1]
    inputs: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        inputs.append(x)
        return x

    with plain.edited(last, keep):
        _, before = _predictions(plain.model, read)
    mean = inputs[0].flatten(0, -2).mean(0)
    for number in (0, 7):
        row = effects.set_index("neuron").loc[number]

        def at_mean(x: torch.Tensor, number: int = number) -> torch.Tensor:
            x = x.clone()
            x[..., number] = mean[number]
            return x

        with plain.edited(last, at_mean):
            _, after = _predictions(plain.model, read)
        np.testing.assert_allclose(row["delta_loss"], after - before, atol=2e-5)


def states(model: Any, plain: Plain) -> None:
    hidden = plain.run(_IDS, output_hidden_states=True).hidden_states
    seen: dict[str, torch.Tensor] = {}
    recipe = hooks.capture(model, "embed", seen) + hooks.capture(model, "resid_post", seen, layer=0)
    with model.hooks(fwd_hooks=recipe):
        forward(model, Batch.of(_IDS.tolist()), 1)
    for activation, expected in zip(seen.values(), hidden[:2], strict=True):
        np.testing.assert_allclose(activation, expected, atol=1e-4 * float(expected.abs().max()))


def generated(model: Any, plain: Plain) -> None:
    """Greedy text with two dimensions removed from the unembedding's input."""
    prompt = _IDS[:1, :5]
    recipe = hooks.prune_output_dims(model, [0, 1])
    [text_generated] = generation.generate(model, prompt.tolist(), hooks=recipe, max_new_tokens=8, **_QUIET)

    def pruned(h: torch.Tensor) -> torch.Tensor:
        return h.index_fill(-1, torch.tensor([0, 1]), 0)

    config = transformers.GenerationConfig(do_sample=False, max_new_tokens=8, pad_token_id=0, eos_token_id=6)
    plain.model.generation_config = transformers.GenerationConfig()
    with plain.edited(plain.head, pruned):
        text = plain.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    new = text[0, prompt.shape[1] :].tolist()
    assert list(text_generated.token_ids) == new, (text_generated.token_ids, new)


_ALL = word_frequency, attention_by_class, contributions, token_probability, neurons, states, generated
QUESTIONS: dict[str, Callable[[Any, Plain], None]] = {one.__name__: one for one in _ALL}


@torch.no_grad()
def ask(question: str, model: Any, plain: Plain) -> str | None:
    """None if the answer is right, the reason if it is refused. Raises AssertionError if it is wrong."""
    with warnings.catch_warnings(action="ignore"):
        try:
            QUESTIONS[question](model, plain)
        except ValueError as error:
            return str(error)
    return None


def _read(model: Any) -> Any:
    return corpora.batches(model, _IDS, mask_rate=0.3) if is_encoder(model) else corpora.batches(model, _IDS)


def _plain(model: Any) -> Any:
    return corpora.batches(model, _IDS)


def _predictions(model: Any, read: Any) -> tuple[np.ndarray, float]:
    """The mean prediction, and the mean NLL of known targets."""
    log_p, nll = [], []
    for batch in read:
        logits = model(batch.tokens, attention_mask=batch.mask).logits
        log_p.append(logits.double().log_softmax(-1)[batch.read])
        has_target = batch.read_targets >= 0
        nll.append(-log_p[-1][has_target].gather(1, batch.read_targets[has_target, None]))
    return torch.cat(log_p).exp().mean(0).numpy(), float(torch.cat(nll).mean())


def asked(kind: str) -> dict[str, str | None]:
    """Every question asked of one kind of toy: None if the answer is right, else the reason why it is refused."""
    with tempfile.TemporaryDirectory() as directory:
        toy(kind, Path(directory))
        try:
            model = interp.load(directory, device="cpu", backend="bridge")
        except ValueError as error:
            return dict.fromkeys(QUESTIONS, str(error).replace(f"{directory} ", ""))
        plain = Plain(Path(directory), kind)
        return {question: ask(question, model, plain) for question in QUESTIONS}


def listing(answers: dict[str, dict[str, str | None]]) -> str:
    """The kinds of which every question is answered, and those of which one is refused, by question and reason."""
    complete = [kind for kind, answers_of_kind in answers.items() if not any(answers_of_kind.values())]
    refused: dict[tuple[str, str], list[str]] = {}
    for question in QUESTIONS:
        for kind, answers_of_kind in answers.items():
            if refusal := answers_of_kind[question]:
                refused.setdefault((question.replace("_", " "), _without_numbers(refusal)), []).append(kind)
    lines = [f"{COMPLETE}{', '.join(complete)}.", "", "## What is refused?", "", _WITHOUT, ""]
    lines += [f"- **{question}** of {', '.join(kinds)}: {reason}." for (question, reason), kinds in refused.items()]
    return "\n".join([*lines, ""])


def _without_numbers(refusal: str) -> str:
    """A reason without what differs from kind to kind."""
    return re.sub(
        r" by [\d.e+-]+ | for this \w+| \(at \d+\)", lambda match: " " * match[0].startswith(" by"), refusal
    ).partition(" (allowed")[0]


PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_WITHOUT = "Where contributions or neurons are refused, `interp attention` and `interp encoding` give all the rest."
COMPLETE = "**Every question is answered for** "
"""The beginning of the line that lists the kinds without a row."""
_INTRODUCTION = """# Which models, which questions

`interp.load` and `--model` accept any causal language model of transformers for which TransformerLens has an \
adapter, and also BERT and RoBERTa. gpt2, gpt_neo, gptj, gpt_neox, opt, llama, mistral, qwen2 and bert run in \
TransformerLens 3's own implementation by default. All others run as transformers' model in a `TransformerBridge`, as \
every model does with `backend="bridge"`.

An architecture that is not listed is loaded if its logits equal those of transformers. Its head, attention scores and \
neurons are checked before their first use, and what does not agree is refused. Encoders without an adapter \
(DistilBERT, ELECTRA, ModernBERT, DeBERTa) are not supported. `interp check MODEL` says what can be asked of a model.

For BART, and for T5 with TransformerLens 4, interp analyses the decoder's prediction head: \
`interp.corpora.seq2seq.teacher_forced` makes batches of sources and targets for `interp.encoding` and \
`interp.frequency` (BART's `final_logits_bias` is its bias on the logits), and `interp.generation.generate` \
generates text from sources.
"""
_TESTED = """## How was this tested?

Each architecture as a bridge around a tiny random model, with random biases and norms, by `python \
tools/architectures.py`, which writes this page, with TransformerLens {lens} and transformers {transformers}. \
*Answered* means that interp's numbers equal those computed with the transformers model alone, from edited parameters, \
attentions, hidden states, gradients and generated text. Log-probabilities of weights that are stored in bfloat16 or \
float16 and loaded in float32 differ by at most 1e-4 from those of `from_pretrained(dtype=torch.float32)`. With \
TransformerLens 3.9, the bridges of RoBERTa (no adapter), Cohere and HunYuan (other logits than transformers) are \
refused.
"""


if __name__ == "__main__":
    versions = {"lens": version("transformer-lens"), "transformers": version("transformers")}
    if versions["lens"] < "4":
        sys.exit(f"the page needs TransformerLens 4, found {versions['lens']}; run .venv-tl4/bin/python {sys.argv[0]}")
    found = {kind: asked(kind) for kind in KINDS}
    PAGE.write_text(f"{_INTRODUCTION}\n{listing(found)}\n{_TESTED.format(**versions)}", encoding="utf-8")

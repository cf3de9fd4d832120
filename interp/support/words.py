"""Names of things, and the format of numbers, in sentences, tables and figures."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, SupportsFloat

__all__ = ["BIAS_MEANING", "BIAS_WORD", "DECODER_NAME", "DISTANCE", "MISSING", "argument", "beginning_words"]
__all__ += ["capitalized", "class_words", "count", "finer", "meant", "named_bias", "of_command_line", "printed"]
__all__ += ["quantised_words", "sentence", "within", "without"]
__dir__ = __all__.copy

_OF_COMMAND_LINE: ContextVar[bool] = ContextVar("of_command_line", default=False)

BIAS_WORD = {"ln": "b_LN", "fc": "b_FC", "last": "b_last", "mean": "E[h]", "slope": "−A"}
"""The display names of biases and of directions that are scaled like them."""
BIAS_MEANING = {
    "ln": "the bias of the final layer norm",
    "fc": "the bias of the head's dense layer",
    "last": "the bias of the logits",
    "mean": "the mean input of the unembedding",
    "slope": "the direction along which log-probability grows",
}
"""What these biases and directions are."""
DISTANCE = "KL(u‖q) (the divergence of the mean prediction q from word frequency u)"
"""How sentences name KL(u‖q)."""
MISSING = "–"
"""What stands for a missing value."""
_CLASS_WORD = {
    "cls": "[CLS]",
    "sep": "[SEP]",
    "bos": "BOS",
    "comma_period": "commas and periods",
    "first": "the first token",
}
# the classes of interp itself, for decoders and for encoders
_CLASSES = ({"first", "bos", "comma_period", "other"}, {"cls", "sep", "comma_period", "other"})
DECODER_NAME = {"sample": "sampling", "top_k": "top-k", "top_p": "top-p"}
"""The display names of decoders, if they differ from the name."""
_PLURAL = {"frequency": "frequencies", "phenomenon": "phenomena"}
_DECIMALS = re.compile(r"\.(\d+)f")
_SYMBOL = re.compile(r"[Α-Ωα-ω]|\w+[_(]")
_SIGN_OF_ZERO = re.compile(r"^[-+](?=0(\.0*)?$)")


def meant(name: object, choices: Iterable[str]) -> str:
    """Return the question whether the most similar of some names was meant, to put after an unknown one; empty if none
    is similar.

    Examples:
        >>> meant("tiny-gtp2", ["tiny-bert", "tiny-gpt2"]), meant("x", ["tiny-bert"]), meant("b_LN", ["ln", "last"])
        (" (did you mean 'tiny-gpt2'?)", '', " (did you mean 'ln'?)")
    """
    spellings = {str(choice).lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(name).lower(), spellings, n=1)
    return f" (did you mean {spellings[near[0]]!r}?)" if near else ""


def class_words(names: Iterable[str]) -> Mapping[str, str]:
    """Return the display names of a study's token classes that differ from the name. A user's own classes have none,
    because they may mean something else by the same name.

    Args:
        names: of all classes of the study.

    Examples:
        >>> class_words(["first", "bos", "comma_period", "other"])["first"]
        'the first token'
        >>> class_words(["first", "second", "other"])
        {}
    """
    return _CLASS_WORD if set(names) in _CLASSES else {}


def named_bias(bias: str) -> str:
    """Name a bias or direction as questions do.

    Examples:
        >>> named_bias("ln"), named_bias("mean")
        ('b_LN', 'the mean input of the unembedding')
    """
    return BIAS_MEANING[bias] if bias == "mean" else BIAS_WORD[bias]


def without(bias: str, scale: float) -> str:
    """Begin a sentence that says what happens without a bias or direction, or with a multiple of it.

    Examples:
        >>> without("ln", 0), without("mean", -0.5)
        ('without b_LN (the bias of the final layer norm)', 'with −0.5 times E[h] (the mean input of the unembedding)')
    """
    condition = "without" if scale == 0 else f"with {printed(scale, '{:g}')} times"
    return f"{condition} {BIAS_WORD[bias]} ({BIAS_MEANING[bias]})"


def beginning_words(bos: object) -> str:
    """Say where the beginning-of-sequence token stands, according to the `bos` of a provenance.

    Examples:
        >>> beginning_words("rows")
        'with the beginning-of-sequence token at the start of each row'
    """
    if bos is False:
        return "without a beginning-of-sequence token"
    where = {"rows": "at the start of each row", "texts": "before each text"}
    return "with the beginning-of-sequence token " + where.get(str(bos), " and ".join(where.values()))


def quantised_words(model: str, types: str) -> str:
    """Say what results of quantised weights are of.

    Examples:
        >>> quantised_words("m.gguf", "Q4_1")
        'the weights of m.gguf are quantised (Q4_1); what is said of the model is said of this file'
    """
    return f"the weights of {model} are quantised ({types}); what is said of the model is said of this file"


def count(number: int, noun: str) -> str:
    """Write a number of things.

    Examples:
        >>> count(1, "task"), count(2_000, "task"), count(2, "phenomenon")
        ('1 task', '2,000 tasks', '2 phenomena')
    """
    return f"{number:,} {noun if number == 1 else _PLURAL.get(noun, noun + 's')}"


def printed(value: SupportsFloat, form: str) -> str:
    """Write a number in readable form, with a minus sign instead of a hyphen. What is printed as zero has no sign.

    Examples:
        >>> printed(-0.125, "{:+.2f}"), printed(12.0, "{:.1f}"), printed(-1e-9, "{:+.1f}")
        ('−0.12', '12.0', '0.0')
    """
    return _SIGN_OF_ZERO.sub("", form.format(value)).replace("-", "−")


def finer(form: str, *values: float) -> str:
    """Find a form in which none of these values is printed as zero unless it is: with more decimals, if needed, so that
    two digits of the smallest are seen. Below a millionth of the largest, and below 1e-9, values count as zero.

    Args:
        form: with a fixed number of decimals, such as `{:+.3f}`; any other is returned as it is.

    Examples:
        >>> finer("{:.3f}", -0.001, -0.002, -0.00001), finer("{:.3f}", 0.0, 0.001)
        ('{:.6f}', '{:.3f}')
    """
    fixed = _DECIMALS.search(form)
    sizes = [abs(value) for value in values if math.isfinite(value)]
    least = max(1e-6 * max(sizes, default=0.0), 1e-9)
    hidden = [size for size in sizes if size >= least and fixed and float(f"{size:.{fixed[1]}f}") == 0]
    return _DECIMALS.sub(f".{1 - math.floor(math.log10(min(hidden)))}f", form) if hidden else form


def capitalized(text: str) -> str:
    """Begin a text with a capital letter, unless it begins with a symbol: `b_LN`, `p(x)` or a Greek letter.

    Examples:
        >>> capitalized("its share is"), capitalized("b_LN is the bias"), capitalized("α is a probability")
        ('Its share is', 'b_LN is the bias', 'α is a probability')
    """
    return text if _SYMBOL.match(text) else f"{text[:1].upper()}{text[1:]}"


def sentence(text: str) -> str:
    """Make a sentence by adding a capital letter and a full stop.

    Examples:
        >>> sentence("its share of attention is 0.41")
        'Its share of attention is 0.41.'
    """
    return f"{capitalized(text)}."


def within(low: float, high: float, form: str, why_none: str = "") -> str:
    """Write the 95 % interval of a number. If it is NaN, says that there is none, and why.

    Examples:
        >>> within(0.1, 0.25, "{:.2f}"), within(float("nan"), 1.0, "{:.2f}")
        ('[0.10, 0.25]', '(no interval)')
        >>> within(float("nan"), float("nan"), "{:.2f}", "a single task")
        '(no interval: a single task)'
    """
    if math.isnan(low) or math.isnan(high):
        return f"(no interval: {why_none})" if why_none else "(no interval)"
    return f"[{printed(low, form)}, {printed(high, form)}]"


def argument(name: str, value: Any = None) -> str:
    """Write an argument as a user writes it: of a function, or in a command line (inside `of_command_line`).

    Examples:
        >>> argument("mask_rate"), argument("bos", True), argument("directions", "mean")
        ('mask_rate=', 'bos=True', "directions='mean'")
        >>> with of_command_line():
        ...     argument("mask_rate"), argument("bos", True), argument("directions", "mean")
        ('--mask-rate', '--bos', '--directions mean')
    """
    flag = f"--{name.replace('_', '-')}"
    if not _OF_COMMAND_LINE.get():
        return f"{name}=" if value is None else f"{name}={value!r}"
    return flag if value in (None, True) else f"{flag} {value}"


@contextmanager
def of_command_line() -> Iterator[None]:
    """A context in which `argument` names flags."""
    token = _OF_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _OF_COMMAND_LINE.reset(token)

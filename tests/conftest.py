"""Toy models and data for all tests. All biases are random, because the zero biases that toys start with test nothing.

Large libraries are imported where they are used, because the process that distributes the tests needs none of them.
"""

import functools
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jaxtyping
import pytest

os.environ["INTERP_STRICT"] = "1"  # a section that cannot be drawn is an error
_jaxtyped = jaxtyping.jaxtyped
_CHECKED = 50  # calls of each function and test
_calls: Counter[Callable[..., Any]] = Counter()


def jaxtyped(*function: Any, typechecker: Any) -> Any:
    """jaxtyping's decorator, only for functions whose annotations name shapes, and for their first calls in each test.

    A check takes longer than many a function. mypy checks the types of the others.
    """
    if not function or not inspect.isfunction(function[0]):
        return _jaxtyped(*function, typechecker=typechecker)
    [plain] = function
    if not _names_shapes(*plain.__annotations__.values()):
        return plain
    checked = _jaxtyped(plain, typechecker=typechecker)

    @functools.wraps(plain)
    def call(*args: Any, **options: Any) -> Any:
        _calls[plain] += 1
        return (checked if _calls[plain] <= _CHECKED else plain)(*args, **options)

    return call


def _names_shapes(*annotations: Any) -> bool:
    return any(
        (inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray))
        or _names_shapes(*get_args(annotation))
        for annotation in annotations
    )


jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = jaxtyped


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses = getattr(item, "fixturenames", [])
        if item.nodeid.startswith("tests/published/"):
            item.add_marker(pytest.mark.published)
        elif item.nodeid.startswith("tests/e2e/") or "shared" in uses:
            item.add_marker(pytest.mark.e2e)
        if "browser" in uses:
            item.add_marker(pytest.mark.browser)
        quick = item.get_closest_marker("quick")
        if quick and not any(case in item.name for case in quick.args):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _types_are_checked_anew() -> None:
    _calls.clear()


@pytest.fixture(autouse=True)
def _quiet_libraries() -> Iterator[None]:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="Hooked")
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    from toys import SHARED

    if not SHARED.is_dir():
        pytest.skip(f"no real models and data at {SHARED}; set INTERP_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def hf_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A saved random model of a kind, with a tokenizer, made once per session."""
    made: dict[str, Path] = {}

    import torch
    from toys import HF_MODELS

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


@pytest.fixture(scope="session")
def load_toy(hf_directory: Callable[[str], Path]) -> Callable[..., Any]:
    """A TransformerLens model of a kind, loaded by interp from its directory.

    A hooked one is loaded and checked against transformers once per session, and each call returns a copy.
    """
    import interp
    from interp.models.sites import view

    hooked: dict[str, Any] = {}

    def load(kind: str, **options: Any) -> Any:
        name = f"{kind} {sorted(options.items())}"
        if name not in hooked:
            model = interp.load(hf_directory(kind), **options)
            if view(model).wrapped is not None:
                return model
            hooked[name] = model
        return view(hooked[name]).copied()

    return load


@pytest.fixture
def texts() -> list[str]:
    import numpy as np

    from interp.testing import WORDS

    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, len(WORDS) + 1)
    draw = lambda n: rng.choice(WORDS, size=n, p=frequency / frequency.sum())  # noqa: E731
    return [" ".join(draw(int(n))) for n in rng.integers(3, 40, size=30)]


@pytest.fixture(scope="session")
def models_made() -> dict[str, Any]:
    return {}


@pytest.fixture
def workshop(tmp_path: Path, hf_directory: Callable[[str], Path], models_made: dict[str, Any], texts: list[str]) -> Any:
    """The workshop in which bad input is made."""
    from workshop import Workshop

    return Workshop(tmp_path, hf_directory, models_made, texts)


@pytest.fixture
def unread(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may read anything; the workshop's models have been loaded before."""

    def forward(*_: Any, **__: Any) -> None:
        raise AssertionError("the model read something before the refusal")

    workshop.fit()
    for cls in {type(workshop.model(kind)) for kind in ("gpt2", "llama", "bert")}:
        monkeypatch.setattr(cls, "forward", forward)


@pytest.fixture
def untyped() -> Iterator[None]:
    """As for users, argument types are not checked."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

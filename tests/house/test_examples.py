"""The examples in docstrings (`>>>`) run and print what they show; every public function has one."""

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import interp

pytestmark = pytest.mark.e2e

MODULES = sorted(module.name for module in pkgutil.walk_packages(interp.__path__, "interp."))
OFFERING = (
    "hooks", "testing", "support.paths", "results.result", "analyses.report", "analyses.declare",
    "plots",
)  # fmt: skip
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
WITHOUT = {
    "interp.support.paths.adapter_directory": "what it does depends on what is installed",
    "interp.support.paths.check_matplotlib": "what it does depends on what is installed",
    "interp.support.paths.check_mauve": "what it does depends on what is installed",
    "interp.support.paths.hub_answers": "it asks the network",
    "interp.plots.show_images": "it starts a browser, and changes how the rest of the process shows figures",
}


def examples(name):
    """The docstrings of what a module offers, each with its source."""
    module = importlib.import_module(name)
    for public in module.__all__ if name != "interp.__main__" else ():
        offered = getattr(module, public)
        doc = getattr(offered, "__doc__", None) or ""
        if ">>>" in doc and getattr(offered, "__module__", None) == name:
            yield doctest.DocTestParser().get_doctest(doc, dict(vars(module)), f"{name}.{public}", module.__file__, 0)


def called():
    """What a user calls, by name: everything that packages (in their stubs) and modules offer, except types and classes
    that only have fields."""
    home = Path(interp.__file__).parent
    packages = (".".join(stub.relative_to(home.parent).parent.parts) for stub in home.rglob("__init__.pyi"))
    for name in sorted([*packages, *(f"interp.{module}" for module in OFFERING)]):
        module = importlib.import_module(name)
        for public in module.__all__:
            offered = getattr(module, public)
            if getattr(offered, "__module__", "").startswith("interp") and not dataclasses.is_dataclass(offered):
                yield f"{name}.{public}", offered


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.endswith("figures") else ()) for name in MODULES]
)
def test_examples(name):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said = []
    for example in examples(name):
        runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)


def test_every_public_function_has_an_example():
    lacking = {name for name, offered in called() if ">>>" not in (offered.__doc__ or "")}
    assert lacking == set(WITHOUT)


def test_an_example_is_the_last_section():
    """This also holds if a decorator has added the options."""
    for name, offered in called():
        if name not in WITHOUT:
            _, _, last = inspect.getdoc(offered).partition("\nExamples:\n")
            assert last, name
            assert all(line.startswith("    ") or not line for line in last.splitlines()), name

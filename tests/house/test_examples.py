"""The examples in docstrings (`>>>`) run, and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import interp

MODULES = sorted(module.name for module in pkgutil.walk_packages(interp.__path__, "interp."))


def examples(name):
    """Those of what a module offers, each with its source."""
    module = importlib.import_module(name)
    for public in module.__all__ if name != "interp.__main__" else ():
        offered = getattr(module, public)
        doc = getattr(offered, "__doc__", None) or ""
        if ">>>" in doc and getattr(offered, "__module__", None) == name:
            yield doctest.DocTestParser().get_doctest(doc, dict(vars(module)), f"{name}.{public}", module.__file__, 0)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said = []
    for example in examples(name):
        runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)


def test_there_are_some():
    assert sum(len(example.examples) for name in ("interp.testing",) for example in examples(name)) > 5

"""The runs that versions are compared by: their settings are options, and a run that fails is named."""

import sys

import golden
import published
import pytest

from interp.analyses import registry


@pytest.mark.parametrize("name", golden.MODELS)
def test_settings_are_options(name):
    settings = golden.settings(name)
    assert set(settings) == set(golden.MODELS[name])
    for question in settings:
        assert registry.load(question).reported(more=True, settings=settings).items() >= settings[question].items()


def test_models_that_are_absent_are_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(golden, "SHARED", tmp_path)
    monkeypatch.setattr(published, "cuts", lambda: {name: tmp_path / name for name in published.CUTS})
    assert golden.models(["tiny-gpt2", golden.STORIES]) == {"tiny-gpt2": "tiny-gpt2"}
    assert capsys.readouterr().out.endswith("is absent; llama-stories260k is left out\n")
    assert golden.models(["MiniLM-cut"]) == {"MiniLM-cut": str(tmp_path / "MiniLM-cut")}


def test_a_run_that_fails_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(golden, "RUN", "import sys; print('interp: error: no', file=sys.stderr); sys.exit(2)")
    monkeypatch.setattr(sys, "argv", ["golden.py", str(tmp_path), "tiny-bert"])
    assert golden.main() == 1
    assert capsys.readouterr().out.count("s exit code 2: interp: error: no\n") == 2

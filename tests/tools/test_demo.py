"""`make demo` asks published models where they can be made, and bundled ones otherwise."""

import subprocess

import demo
import published
import pytest


def models(lines):
    return {line[line.index("--model") + 1] for line in lines}


def test_published_models_are_asked_where_they_can_be_made(monkeypatch):
    monkeypatch.setattr(published, "directories", lambda: {name: f"/made/{name}" for name in published.PRODUCTS})
    lines = demo.commands()
    expected = {f"/made/{published.SMOLLM2}", f"/made/{published.MINILM}", "tiny-gpt2", "tiny-bert"}
    assert models(lines) == expected
    assert {line[1] for line in lines} == {"frequency", "generation", "attention", "encoding", "probing"}


@pytest.mark.parametrize("error", [published.Unreachable("no index"), OSError("no space")])
def test_bundled_models_are_asked_everything_otherwise(monkeypatch, capsys, error):
    def unavailable():
        raise error

    monkeypatch.setattr(published, "directories", unavailable)
    lines = demo.commands()
    assert models(lines) == {"tiny-gpt2", "tiny-bert"}
    assert {line[1] for line in lines} == {"report"}
    shown = capsys.readouterr().out
    assert "Bundled models" in shown
    assert str(error) in shown


def test_a_command_that_fails_is_shown_with_its_output(capfd):
    with pytest.raises(subprocess.CalledProcessError):
        demo.run(["interp", "show", "no-such-run"])
    shown = capfd.readouterr().out
    assert "'no-such-run'" in shown
    assert "interp show no-such-run" in shown

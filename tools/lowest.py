"""Run lint, types and tests with the lowest versions that pyproject.toml allows, in a venv of their own.

    .venv/bin/python tools/lowest.py [--venv DIRECTORY] [-- ARGUMENTS OF PYTEST]

`make lowest` runs this with arguments for pytest. Each `name>=version` among the dependencies, and among the extras
that the tests need, is installed as `name==version`. For names without a lower bound, and for packages that are only
needed by others, pip chooses the version.
"""

import argparse
import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("dev", "docs")
"""The extras that `make test` installs."""


def lowest_requirements() -> list[Requirement]:
    """The requirements of the project and its tests, pinned to their lower bounds, without duplicates."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return [at_lowest(Requirement(line)) for line in dict.fromkeys(lines)]


def at_lowest(requirement: Requirement) -> Requirement:
    """`name>=1,<2` as `name==1`; a requirement without a lower bound is returned as it is."""
    for bound in requirement.specifier:
        if bound.operator == ">=":
            requirement.specifier = SpecifierSet(f"=={bound.version}")
    return requirement


def install(requirements: list[Requirement], directory: Path) -> Path:
    """Make the venv, replacing an existing one, install the project in it, and return its Python."""
    venv.create(directory, clear=(directory / "pyvenv.cfg").exists(), with_pip=True)
    python = directory / "bin" / "python"
    project = f"{ROOT}[{','.join(EXTRAS)}]"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--editable", project, *map(str, requirements)], check=True)
    return python


def installed_versions(python: Path) -> dict[str, str]:
    listing = subprocess.check_output([python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    return {canonicalize_name(package["name"]): package["version"] for package in json.loads(listing)}


def main() -> str | None:
    """What failed, or None."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-lowest", help="where to make it (.venv-lowest)")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    requirements = lowest_requirements()
    python = install(requirements, options.venv.absolute())
    versions = installed_versions(python)
    for requirement in requirements:
        print(requirement.name, versions[canonicalize_name(requirement.name)], flush=True)
    checks = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["pytest", *options.arguments]]
    failed = [" ".join(check) for check in checks if subprocess.run([python, "-m", *check], cwd=ROOT).returncode]
    return f"failed with the lowest versions: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main())

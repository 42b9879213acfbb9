"""Everything this repository runs: ``nox -s quickstart | tests | lint | conformance | bench | docs | build``.

All installs go through pip with the pins of ``constraints.txt``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ("ops", "core", "interop", "train")  # each depends on those before it

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True

CHECK = ["ruff", "mypy"]
SITE = ["mkdocs-material", "pymdown-extensions"]
QUICKSTART = ["scikit-learn", "matplotlib", "rich", "optax"]
BENCH = ["rich", "psutil", "optax"]


def _group(package: str, name: str = "test") -> list[str]:
    return nox.project.dependency_groups(nox.project.load_toml(f"packages/torchax-{package}/pyproject.toml"), name)


def _install(session: nox.Session, package: str | None, *others: str) -> None:
    """Install a package from here, editable, with those it depends on; then other requirements."""
    needed = PACKAGES[: PACKAGES.index(package) + 1] if package else ()
    editable = [arg for name in needed for arg in ("-e", f"packages/torchax-{name}")]
    session.install("-c", "constraints.txt", *editable, *others)


def _pytest(session: nox.Session, *args: str) -> None:
    session.run("python", "-m", "pytest", "-q", *args, *session.posargs)


def _no_torch(session: nox.Session) -> None:
    code = (
        "import importlib.util, sys; sys.exit('torch is importable here' if importlib.util.find_spec('torch') else 0)"
    )
    session.run("python", "-c", code)


def _all(session: nox.Session, *commands: tuple[str, ...]) -> None:
    """Run every command, and fail at the end if one did: one run shows all that is wrong."""
    failed = []
    for command in commands:
        try:
            session.run(*command)
        except nox.command.CommandFailed:
            failed.append(" ".join(command))
    if failed:
        session.error(f"failed: {'; '.join(failed)}")


LINT = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))


@nox.session
@nox.parametrize("part", [nox.param(part, id=part) for part in (*PACKAGES, "models", "whole")])
def tests(session: nox.Session, part: str) -> None:
    """Each package in an environment of its own, then models, then the whole: conformance, README, lint."""
    if part == "models":
        _install(session, "interop", *_group("core", "models"), *_group("interop", "models"))
        models = sorted(map(str, Path("packages").glob("*/tests/test_models*.py")))
        _pytest(session, "-n", "2", *models)
    elif part == "whole":
        _install(
            session, "train", *_group("train"), *_group("interop", "models"), *_group("core", "conformance"), *CHECK
        )
        pytest = ("python", "-m", "pytest", "-q")
        _all(session, (*pytest, "-n", "2", "conformance"), (*pytest, "docs/test_readme.py"), *LINT)
    else:
        _install(session, part, *_group(part))
        if part == "ops":
            _no_torch(session)
        _pytest(session, "-n", "2", f"packages/torchax-{part}/tests", "--ignore-glob=*/test_models*")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, its formatter, and mypy on the public modules of all packages."""
    _install(session, "train", *CHECK)
    _all(session, *LINT)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small CNN on scanned digits, eager and compiled, beside CPU torch; write quickstart.png."""
    _install(session, "core", *QUICKSTART)
    session.run("python", "examples/quickstart.py", *session.posargs)


@nox.session(name="example-llama")
def example_llama(session: nox.Session) -> None:
    """Train a byte-level Llama on eight CPU devices, kill it, resume it, and let it write Python."""
    _install(session, "train", "transformers")
    session.run("python", "examples/train_llama.py", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Every operator beside CPU PyTorch, written to docs/parity: ``nox -s conformance -- --ops add,softmax`` for some."""
    _install(session, "core", *_group("core", "conformance"))
    session.run("python", "conformance/run.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Figures against CPU torch and jax.numpy in one run: ``nox -s bench -- eager`` or ``jit``."""
    name, *args = session.posargs or ["eager"]
    script = ROOT / "bench" / f"{name}.py"
    if not script.exists():
        session.error(
            f"no bench named {name!r}; there are: {', '.join(sorted(p.stem for p in script.parent.glob('*.py')))}"
        )
    _install(session, "interop", *BENCH)
    session.run("python", str(script), *args)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, where every warning is an error."""
    _install(session, "core", *SITE)
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists, each installed into a clean environment and used there."""
    session.install("-c", "constraints.txt", "build", "hatchling", "virtualenv")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), f"packages/torchax-{name}")
    wheels: list[str] = []
    for name in PACKAGES:
        (wheel,) = dist.glob(f"torchax_{name}-*.whl")
        (_,) = dist.glob(f"torchax_{name}-*.tar.gz")
        wheels.append(str(wheel))
        env = Path(session.create_tmp()) / f"wheel-{name}"
        shutil.rmtree(env, ignore_errors=True)
        session.run("python", "-m", "virtualenv", "-q", str(env))
        python = env / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        session.run(str(python), "-m", "pip", "install", "-q", "-c", "constraints.txt", *wheels, external=True)
        session.run(str(python), "-I", f"packages/torchax-{name}/tests/installed.py", external=True)
        shutil.rmtree(env)

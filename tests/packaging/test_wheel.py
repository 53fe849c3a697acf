"""The wheel, outside the checkout: small, quick, complete, and harmless beside an installed engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kvpolicy
from tools.environment import CHECKOUT, EngineEnv, Environment
from tools.server import run_server

SHIPPED = sorted(path.name for path in (CHECKOUT / "policies").glob("*.yaml"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the installed build backend."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, engine_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh venv that holds the wheel and what it needs, and nothing else."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run(
        [home / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links",
         engine_environment.root / "wheelhouse", wheel],
        check=True,
        env=_clean(),
    )  # fmt: skip
    return home / "bin"


def _clean() -> dict[str, str]:
    """This process's environment without what could make the checkout importable."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KVPOLICY", "COVERAGE"))}


def _run(command: list[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=_clean(), capture_output=True, text=True, timeout=120)


def test_the_wheel_holds_the_packages_the_policies_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {f"kvpolicy/_policies/{name}" for name in SHIPPED} <= set(names)
    assert {"kvpolicy/py.typed", "kvpolicy/cli/main.py", "kvpolicy_sglang/plugin.py"} <= set(names)
    assert {"kvpolicy/fidelity/text.md", "kvpolicy/fidelity/text.LICENSE.md"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert roots == {"kvpolicy", "kvpolicy_sglang", "kvpolicy_vllm"}, (
        "one distribution, three import packages, nothing beside them"
    )


def test_the_core_brings_no_engine_and_no_torch(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(_run([installed / "python", "-m", "pip", "list", "--format=json"], tmp_path).stdout)
    names = {item["name"].lower().replace("_", "-") for item in listed}
    assert {"kvpolicy", "pyyaml", "pydantic"} <= names
    expected = {"kvpolicy", "pyyaml", "pydantic", "pydantic-core", "annotated-types", "typing-extensions"}
    assert names <= expected | {"typing-inspection", "pip", "setuptools"}


def test_version_answers(installed: Path, tmp_path: Path) -> None:
    done = _run([installed / "kvpolicy", "--version"], tmp_path)
    assert done.stdout == f"kvpolicy {kvpolicy.__version__}\n"


def test_list_names_every_shipped_policy(installed: Path, tmp_path: Path) -> None:
    done = _run([installed / "kvpolicy", "list"], tmp_path)
    assert done.returncode == 0, done.stderr
    for name in SHIPPED:
        assert name.removesuffix(".yaml") in done.stdout


@pytest.mark.parametrize("name", [name.removesuffix(".yaml") for name in SHIPPED])
def test_every_shipped_policy_passes_check_by_name(installed: Path, tmp_path: Path, name: str) -> None:
    for argument in (name, f"builtin:{name}"):
        done = _run([installed / "kvpolicy", "check", argument], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_policy_extends_a_shipped_one(installed: Path, tmp_path: Path) -> None:
    head = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: mine}\n"
    (tmp_path / "mine.yaml").write_text(head + "extends: builtin:chat\neviction: {policy: lfu}\n")
    (tmp_path / "orphan.yaml").write_text(head + "extends: builtin:chatt\n")
    done = _run([installed / "kvpolicy", "check", "mine.yaml"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = _run([installed / "kvpolicy", "show", "mine.yaml"], tmp_path)
    assert "lfu" in shown.stdout
    assert "shared-opening" in shown.stdout
    orphan = _run([installed / "kvpolicy", "check", "orphan.yaml"], tmp_path)
    assert orphan.returncode == 1
    assert "builtin:chat" in orphan.stdout + orphan.stderr


def _requirements(metadata: str) -> list[Requirement]:
    """What a distribution needs without any extra, on this machine."""
    lines = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    needed = [Requirement(line) for line in lines]
    return [item for item in needed if item.marker is None or item.marker.evaluate({"extra": ""})]


@pytest.mark.engine
def test_installing_beside_an_engine_changes_nothing_else(wheel: Path, engine_environment: Environment) -> None:
    """pip, asked to install the wheel's requirements into the engine's environment, finds nothing to do."""
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        requirements = [str(item) for item in _requirements(file.read(metadata).decode())]
    assert requirements
    pip = [engine_environment.python, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet", "--report", "-"]
    done = subprocess.run([*pip, *requirements], env=_clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["install"] == []


@pytest.mark.engine
def test_our_requirements_accept_what_engines_pin(wheel: Path, engine_environment: Environment) -> None:
    """For each package that both we and an SGLang version require, the version beside that engine suits both."""
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        ours = {item.name.lower(): item for item in _requirements(file.read(metadata).decode())}
    compared = 0
    for home in sorted(engine_environment.root.glob("sglang-*/*.dist-info/METADATA")):
        for theirs in _requirements(home.read_text()):
            if (mine := ours.get(theirs.name.lower())) is not None:
                compared += 1
                installed_version = version(theirs.name)
                assert mine.specifier.contains(installed_version), (home, theirs)
                assert theirs.specifier.contains(installed_version), (home, theirs)
    assert compared >= 3, "every SGLang version requires pydantic"


@pytest.mark.server
def test_a_server_takes_a_shipped_policy_by_name_from_the_wheel(
    wheel: Path, sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    """Installed from the wheel, started outside the checkout: the name resolves inside the installed package."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
    subprocess.run(pip, check=True, env=_clean())
    engine = sglang_env("0.5.20")
    engine = replace(engine, env={**engine.env, "PYTHONPATH": f"{site}{os.pathsep}{engine.env['PYTHONPATH']}"})
    where = (
        "import kvpolicy.language as l; r = l.load_policy('long_context'); print(l.__file__, r.policy.metadata.name)"
    )
    done = subprocess.run([engine.python, "-c", where], cwd=tmp_path, env=engine.env, capture_output=True, text=True)
    assert done.stdout.split() == [str(site / "kvpolicy/language/__init__.py"), "long-context"], done.stderr
    flags = ("--max-total-tokens", "2048")
    log = tmp_path / "server.log"
    with run_server(
        engine, tiny_model, *flags, policy="long_context", log_path=log, cwd=tmp_path, fresh=True
    ) as running:
        assert running.internal_state()["kvpolicy"]["name"] == "long-context"
        assert running.internal_state()["page_size"] == 16

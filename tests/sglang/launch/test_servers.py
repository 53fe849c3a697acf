"""Servers that start with a policy, on each path, and say what they run."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.language import load_policy
from tests.launching import in_children, injecting
from tests.sglang.launch.processes import SglangEnv, write_policy
from tests.sglang.launch.test_flags import IDLE_MODULES
from tools.environment import EngineEnv
from tools.server import Server, free_port, run_server, server_arguments, stop_group, wait_healthy

pytestmark = [pytest.mark.engine, pytest.mark.server]

# Without a bound the pool would take all of the machine's memory.
POOL = ("--max-total-tokens", "1024")
ENTRY = "from sglang.cli.main import main; main()"


@contextmanager
def served(engine: EngineEnv, model: Path, log_path: Path, *flags: str) -> Iterator[Server]:
    """`sglang serve MODEL ...`, otherwise as :func:`run_server`."""
    port = free_port()
    arguments = server_arguments(model, flags, None, port)[2:]
    command = [str(engine.python), "-c", ENTRY, "serve", str(model), *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, env=engine.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    server = Server(port, process, log_path)
    try:
        wait_healthy(server, 240)
        yield server
    finally:
        stop_group(process)


def check_block(server: Server, policy: Path) -> dict[str, Any]:
    """The static block and the live one agree with the policy and with what runs; returns the live one."""
    digest = load_policy(policy, engine="sglang").digest
    info = server.server_info()
    static, live = info["kvpolicy"], info["internal_states"][0]["kvpolicy"]
    assert static["verified_schedulers"] == 1
    for block in (static, live):
        assert (block["name"], block["digest"]) == ("launch-test", digest)
        assert block["conflicts"] == []
        effective = {path: setting["effective"] for path, setting in block["settings"].items()}
        assert effective["cache.page_size"] == 16
        assert effective["cache.kv_dtype"] == "bf16"
        assert effective["backend.attention"] == "torch_native"
    assert live["core"] == "kvpolicy"
    assert live["core_reason"]
    assert live["fallbacks"] == {}
    assert (info["page_size"], info["attention_backend"]) == (16, "torch_native")
    log = server.log()
    assert f"kvpolicy: 1 scheduler process(es) run policy launch-test, digest {digest[:12]}, core kvpolicy" in log
    return live


def flood(server: Server, requests: int, tokens: int) -> None:
    for number in range(requests):
        server.generate([10 + (number * 7919 + at * 31) % 200 for at in range(tokens)], max_new_tokens=2)


def test_launch_server_reports_and_a_file_changed_meanwhile_changes_nothing(
    sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path
) -> None:
    policy = write_policy(tmp_path)
    loaded = tmp_path / "loaded.yaml"
    loaded.write_text(policy.read_text())
    change = f"import pathlib\npathlib.Path({str(policy)!r}).write_text('page_size: 32')"
    engine = injecting(sglang_env("0.5.20"), tmp_path / "change", in_children(change))
    with run_server(
        engine, tiny_model, *POOL, "--enable-metrics", policy=policy, log_path=tmp_path / "log", fresh=True
    ) as server:
        assert policy.read_text() == "page_size: 32"
        before = check_block(server, loaded)
        assert before["evict_calls"] == 0

        flood(server, requests=12, tokens=300)
        after = server.internal_state()["kvpolicy"]
        assert after["evict_calls"] > 0
        assert sum(after["evicted_tokens"].values()) > 1024
        assert sum(after["evictions"].values()) > 0
        assert after["victim_digest"] != before["victim_digest"]

        metrics = {re.sub(r"\{.*", "", name): value for name, value in server.metrics().items() if "kvpolicy" in name}
        assert metrics["kvpolicy_info"] == 1
        assert metrics["kvpolicy_evicted_tokens_total"] == sum(after["evicted_tokens"].values())
        assert metrics["kvpolicy_evictions_total"] == sum(after["evictions"].values())
        assert metrics["kvpolicy_evict_seconds_count"] == after["evict_calls"]


def test_launch_server_on_the_oldest_cache(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    with run_server(sglang_env("0.5.18"), tiny_model, *POOL, policy=policy, log_path=tmp_path / "log") as server:
        check_block(server, policy)


def test_sglang_serve_from_a_config_file(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    config = tmp_path / "server.yaml"
    config.write_text(f"kv-policy: {policy}\npage-size: 16\n")  # explicit and equal: no conflict
    with served(sglang_env("0.5.23"), tiny_model, tmp_path / "log", *POOL, "--config", str(config)) as server:
        live = check_block(server, policy)
        assert live["settings"]["cache.page_size"]["decided_by"] == "--page-size 16"


# A second plugin that writes down which hooks and modules of ours exist once all plugins are loaded.
WITNESS = """\
import json, os, pathlib, sys
def load():
    from sglang.srt.plugins.hook_registry import HookRegistry
    apply = HookRegistry.apply_hooks
    def apply_and_tell():
        apply()
        ours = [m for m in sys.modules if m.startswith("kvpolicy")]
        told = {"hooks": list(HookRegistry._hooks), "modules": sorted(ours), "argv": sys.argv}
        pathlib.Path(os.environ["WITNESS"], f"{os.getpid()}.json").write_text(json.dumps(told))
    HookRegistry.apply_hooks = apply_and_tell
"""


def with_witness(engine: EngineEnv, folder: Path) -> EngineEnv:
    info = folder / "plugin" / "witness-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: witness\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nwitness = witness:load\n")
    (folder / "plugin" / "witness.py").write_text(WITNESS)
    told = folder / "told"
    told.mkdir()
    path = f"{folder / 'plugin'}:{engine.env['PYTHONPATH']}"
    return EngineEnv(engine.version, engine.python, {**engine.env, "PYTHONPATH": path, "WITNESS": str(told)})


def test_installed_without_a_policy_nothing_is_patched(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    """On 0.5.23, which loads plugins in the most kinds of process."""
    engine = with_witness(sglang_env("0.5.23"), tmp_path)
    with run_server(engine, tiny_model, *POOL, log_path=tmp_path / "log", fresh=True) as server:
        assert "kvpolicy" not in server.server_info()
        assert "kvpolicy" not in server.internal_state()
    told = [json.loads(path.read_text()) for path in (tmp_path / "told").iterdir()]
    assert len(told) >= 3, "launcher, scheduler, detokenizer"
    for process in told:
        assert process["hooks"] == []
        assert process["modules"] == IDLE_MODULES


def test_disabled_accepts_the_flag_and_runs_stock(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    engine = with_witness(sglang_env("0.5.20", {"KVPOLICY_DISABLE": "1"}), tmp_path)
    with run_server(engine, tiny_model, *POOL, policy=policy, log_path=tmp_path / "log") as server:
        info = server.server_info()
        assert "kvpolicy" not in info
        assert info["page_size"] == 1
        assert f"KVPOLICY_DISABLE is set: --kv-policy {policy} is ignored, the engine runs stock" in server.log()
    told = [json.loads(path.read_text()) for path in (tmp_path / "told").iterdir()]
    patched = {hook for process in told for hook in process["hooks"]}
    record = "sglang.srt.server_args.ServerArgs"
    assert patched == {f"{record}.add_cli_args", f"{record}.from_cli_args"}, "only what accepts the flag"
    assert [process["hooks"] for process in told if process["modules"] == IDLE_MODULES] == [[]], "the scheduler"

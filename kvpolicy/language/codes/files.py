"""KVP1xx: the file, its YAML, and `extends`."""

from __future__ import annotations

from kvpolicy.language.codes.base import HEADER, Code, codes

__all__ = ["FILES"]

_LRU = "eviction: {policy: lru}\n"
_WHOLE = HEADER + _LRU
_CHILD = HEADER + "extends: ./parent.yaml\n" + _LRU
_BOMB = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10) if i else 'lol'}]\n" for i in range(9))
_NINE = {f"p{i}.yaml": HEADER + (f"extends: ./p{i + 1}.yaml\n" if i < 9 else _LRU) for i in range(10)}

FILES = codes(
    Code(
        "KVP101",
        "no such policy",
        "The argument is neither a file that can be opened nor the name of a shipped policy. `check` exits with 2: "
        "this is bad usage, not a bad policy. `kvpolicy list` names the shipped ones.",
        bad="",
        good=_WHOLE,
        raw=True,
        args=("no_such_policy.yaml",),
    ),
    Code(
        "KVP102",
        "empty file",
        "The file holds no document. An empty policy could mean `the engine's defaults`, or a failed copy; write "
        "the two header lines to say the former.",
        bad="# nothing but a comment\n",
        good=HEADER,
        raw=True,
    ),
    Code(
        "KVP103",
        "binary file",
        "The file contains bytes that no text has. It is probably a model file or an archive given by mistake. "
        "An escape for half of a surrogate pair is no text either.",
        bad=b"PK\x03\x04\x00\x00",
        good=_WHOLE,
        raw=True,
    ),
    Code(
        "KVP104",
        "not UTF-8",
        "Policies are UTF-8 text, with or without a byte order mark.",
        bad=b"# caf\xe9\n" + _WHOLE.encode(),
        good="# café\n" + _WHOLE,
        raw=True,
    ),
    Code(
        "KVP105",
        "file too large",
        "A policy, with its parents, is at most 128 KiB. Checking stays fast, and a dump given by mistake does not "
        "fill memory.",
        bad=_WHOLE + "# padding\n" * 14_000,
        good=_WHOLE,
        raw=True,
    ),
    Code(
        "KVP106",
        "invalid YAML",
        "The text is not YAML. The place is where the parser noticed; the cause is there or just above.",
        bad="eviction: {policy: lru\n",
        good=_LRU,
    ),
    Code(
        "KVP107",
        "tab as indentation",
        "YAML is indented with spaces; a tab has no agreed width.",
        bad="eviction:\n\tpolicy: lru\n",
        good="eviction:\n  policy: lru\n",
    ),
    Code(
        "KVP108",
        "several documents",
        "A file holds one policy. Policies share values through `extends`, not through `---`.",
        bad=_LRU + "---\n" + _WHOLE,
        good=_LRU,
    ),
    Code(
        "KVP109",
        "nested too deep",
        "The grammar needs seven levels; more than 32 is a mistake or an attack on the parser.",
        bad="eviction: " + "[" * 40 + "]" * 40 + "\n",
        good=_LRU,
    ),
    Code(
        "KVP110",
        "too many values",
        "The file holds, or its aliases expand to, more than 5,000 values.",
        bad=_BOMB,
        good=_LRU,
    ),
    Code(
        "KVP111",
        "alias in a circle",
        "An alias points to a value that contains the alias, so the value would never end.",
        bad="eviction: &loop {params: *loop}\n",
        good="eviction: {params: {}, policy: lru}\n",
    ),
    Code(
        "KVP112",
        "language tag",
        "Tags (!!python/object, !!binary, !custom) ask the reader to build something other than plain data. A "
        "policy is plain data.",
        bad="eviction: {policy: !!python/name:os.system lru}\n",
        good=_LRU,
    ),
    Code(
        "KVP113",
        "key given twice",
        "YAML readers differ in which of the two wins, so neither does.",
        bad="eviction: {policy: lru}\neviction: {policy: lfu}\n",
        good=_LRU,
    ),
    Code(
        "KVP114",
        "key that is not a word",
        "A list or a mapping cannot be a key.",
        bad="eviction: {policy: lru, [a, b]: 1}\n",
        good=_LRU,
    ),
    Code(
        "KVP115",
        "number with a leading zero",
        "YAML 1.1 reads 0777 as octal (511), YAML 1.2 as 777. Write what you mean: 777, or 0o777.",
        bad="eviction: {policy: slru, params: {protected_hits: 02}}\n",
        good="eviction: {policy: slru, params: {protected_hits: 2}}\n",
    ),
    Code(
        "KVP116",
        "integer too large",
        "Integers are counts and fit 64 bits.",
        bad="hints: {max_priority: 99999999999999999999}\n",
        good="hints: {max_priority: 5}\n",
    ),
    Code(
        "KVP117",
        "merge key",
        "`<<` was a YAML 1.1 extension; YAML 1.2 has none. Share values between files with `extends`.",
        bad="eviction: &e {policy: lru}\nengines: {sglang: {eviction: {<<: *e}}}\n",
        good="eviction: {policy: lru}\nengines: {sglang: {eviction: {policy: lfu}}}\n",
    ),
    Code(
        "KVP118",
        "missing parent",
        "The file that `extends` names does not exist or cannot be opened. A path is relative to the file that "
        "names it.",
        bad="extends: ./parnt.yaml\n",
        good="extends: ./parent.yaml\n",
        files={"parent.yaml": _WHOLE},
    ),
    Code(
        "KVP119",
        "extends in a circle",
        "A policy is, through its parents, its own parent.",
        bad="extends: ./b.yaml\n",
        good="extends: ./parent.yaml\n",
        files={"b.yaml": HEADER + "extends: ./b.yaml\n", "parent.yaml": _WHOLE},
    ),
    Code(
        "KVP120",
        "too many parents",
        "At most 8 policies above one; a reader must be able to follow them.",
        bad="extends: ./p0.yaml\n",
        good="extends: ./p5.yaml\n",
        files=_NINE,
    ),
    Code(
        "KVP121",
        "remote parent",
        "`extends` reads local files only: a policy must mean the same on every rank and tomorrow.",
        bad="extends: https://example.com/base.yaml\n",
        good="extends: ./parent.yaml\n",
        files={"parent.yaml": _WHOLE},
    ),
    Code(
        "KVP122",
        "extends takes one name",
        "The value of `extends` is `builtin:NAME` or a path relative to the file.",
        bad="extends: [./parent.yaml]\n",
        good="extends: ./parent.yaml\n",
        files={"parent.yaml": _WHOLE},
    ),
    Code(
        "KVP123",
        "not a mapping",
        "A policy is a mapping of keys to values at its top level.",
        bad="- eviction\n",
        good=_WHOLE,
        raw=True,
    ),
)

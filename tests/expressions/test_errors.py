"""Everything outside the language is one error, at the exact characters, with a way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from kvpolicy.language.expressions import ExpressionError, compile_admit, compile_match, compile_score
from kvpolicy.language.expressions.scan import MAX_CHARS, MAX_TOKENS

Compiler = Callable[[str], object]


def error_of(text: str, compiler: Compiler = compile_score) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compiler(text)
    return caught.value


# (text, the characters it points at, part of the message, part of the help); "" points at the end.
SYNTAX = [
    ("hits.real", "hits.real", "attributes", "only a request has parts"),
    ("1 + request.__class__", "request.__class__", "unknown field", "a request has"),
    ("request.lora.upper", "request.lora.upper", "attributes", ""),
    ("'a'.join", "'a'.join", "attributes", ""),
    ("hits[0]", "hits[0]", "subscript", ""),
    ("1 + abs(*hits)", "*hits", "`*` before an argument", "one by one"),
    ("exp(x=hits)", "=", "single `=`", "=="),
    ("hits = 3", "=", "single `=`", "=="),
    ("hits => 3", "=>", "`=>`", ">="),
    ("hits =< 3", "=<", "`=<`", "<="),
    ("(n := hits)", ":=", "assignment", ""),
    ("lambda: hits", "lambda", "`lambda`", ""),
    ("[h for h in hits]", "for", "`for`", ""),
    ("await hits", "await", "`await`", ""),
    ("yield", "yield", "`yield`", ""),
    ("1 + f'{hits}'", "f'{hits}'", "an f-string", "plain string"),
    ("1 + b'a'", "b'a'", "prefix `b`", "plain string"),
    ("1 + __import__('os').getpid()", "__import__('os').getpid()", "only plain functions", "log1p"),
    ("1 + __import__('os')", "__import__", "unknown function", ""),
    ("(hits, 1)", "(hits, 1)", "a tuple", "`in`"),
    ("{hits}", "{", "set or dict", ""),
    ("hits & 1", "&", "`&`", "`and`"),
    ("hits > 1 && hits < 3", "&&", "`&&`", "`and`"),
    ("hits > 1 || is_output", "||", "`||`", "`or`"),
    ("!is_output", "!", "`!`", "`not`"),
    ("hits ^ 2", "^", "`^`", "`**`"),
    ("~hits", "~", "`~`", ""),
    ("hits @ 2", "@", "`@`", ""),
    ("hits ? 1 : 2", "?", "`?`", "if condition else"),
    ("hits; 1", ";", "`;`", ""),
    ("hits # often", "#", "comment", "outside"),
    ("hits + \\\n 1", "\\", "`\\`", "no backslash"),
    ("hits\x00", "\x00", "U+0000", ""),
    ("1 + héts", "é", "`é`", ""),
    ("hits \u00d7 2", "\u00d7", "not part", ""),
    ("\ud800", "\ud800", "U+D800", ""),
    ("...", "...", "not part", ""),
    ("1 + 3j", "3j", "`3j` is no number", "decimal"),
    ("hits + 600s", "600s", "`600s` is no number", "_s"),
    ("depth_tokens < 8Ki", "8Ki", "`8Ki` is no number", "_tokens"),
    ("hits + 0x1f", "0x1f", "`0x1f` is no number", ""),
    ("hits + 0777", "0777", "leading zero", "write 777"),
    ("hits * 2%", "", "ends too early", "0.02 for 2%"),
    ("hits +", "", "ends too early", ""),
    ("hits 2", "2", "no expression", ""),
    ("max(1, hits", "(", "never closed", ""),
    ("hits)", ")", "closes nothing", ""),
    ("'gold", "'gold", "never closed", ""),
    ("'a' == 'b' 'c'", "'c'", "side by side", ""),
    ("request.lora == 'a\\n'", "\\", "inside a string", "no escapes"),
    ("1 if is_output", "1 if is_output", "expected 'else'", ""),
]
MEANING = [
    ("1 + hit", "hit", "unknown field `hit`", "did you mean `hits`?"),
    ("1 + idle", "idle", "unknown field", "`idle_requests` or `idle_s`"),
    ("1 + priority", "priority", "unknown field", "did you mean `request.priority`?"),
    ("1 + request.prio", "request.prio", "unknown field", "did you mean `request.priority`?"),
    ("1 if true else 0", "true", "unknown field", "did you mean `True`?"),
    ("1 + touch_s", "touch_s", "unknown field", ""),  # an anchor, for keys only
    ("1 + request", "request", "alone is no value", "request.priority"),
    ("log10(hits)", "log10", "unknown function", "log(x)"),
    ("floors(hits)", "floors", "unknown function", "did you mean `floor`?"),
    ("pow(hits, 2)", "pow", "unknown function", "a ** b"),
    ("1 + log", "log", "is a function", "log(x)"),
    ("1 + max(hits)", "max(hits)", "does not take 1", "max(x, y, ...)"),
    ("depth_tokens - idle_s", "depth_tokens - idle_s", "mixes tokens with seconds", "0.1 * idle_s"),
    ("1 + min(size_tokens, idle_s)", "idle_s", "compares tokens with seconds", ""),
    ("1 if depth_tokens < idle_s else 0", "depth_tokens < idle_s", "compares tokens with seconds", "one unit"),
    ("1 if 2 * depth_tokens < idle_s else 0", "2 * depth_tokens < idle_s", "compares tokens with seconds", ""),
    ("1 if 0 < depth_tokens < idle_s else 0", "depth_tokens < idle_s", "compares tokens with seconds", ""),
    ("1 if idle_requests == age_s else 0", "idle_requests == age_s", "compares requests with seconds", ""),
    ("1 if size_tokens ** 2 > size_tokens else 0", "size_tokens ** 2 > size_tokens", "tokens**2 with tokens", ""),
    ("1 if size_tokens / idle_s > idle_s else 0", "size_tokens / idle_s > idle_s", "tokens/seconds with", ""),
    ("size_tokens if is_output else idle_s", "size_tokens if is_output else idle_s", "different units", "weigh"),
    ("hits if is_output else False", "hits if is_output else False", "true or false", ""),
    ("is_output * 3", "is_output", "must be a number", "1 if is_output else 0"),
    ("-request.lora", "request.lora", "must be a number; this is text", ""),
    ("log('a')", "'a'", "must be a number; this is text", ""),
    ("1 + None", "None", "must be a number; this is None", ""),
    ("1 if hits else 0", "hits", "must be true or false", "hits > 0"),
    ("1 if hits > 1 and hits else 0", "hits", "must be true or false", ""),
    ("1 if not request.lora else 0", "request.lora", "must be true or false", "is not None"),
    ("1 if request.lora == None else 0", "request.lora == None", "always false", "is None"),
    ("1 if request.lora < 'a' else 0", "request.lora < 'a'", "compares numbers", "=="),
    ("1 if hits == 'a' else 0", "hits == 'a'", "a number with text", ""),
    ("1 if is_output == 1 else 0", "is_output == 1", "true or false with a number", ""),
    ("1 if hits is None else 0", "hits", "never None", "request.priority"),
    ("1 if request.lora is 'a' else 0", "request.lora is 'a'", "only for None", "=="),
    ("1 if request.lora in 'abc' else 0", "'abc'", "a list of constants", ""),
    ("1 if request.lora in ('a', 3) else 0", "3", "constants only: text", ""),
    ("1 if hits in (1, hits) else 0", "hits", "constants only: numbers", ""),
    ("9**9**9", "9**9", "exponent is too large", "100"),
    ("hits ** -101", "-101", "exponent is too large", ""),
    ("1e300 * 1e300", "1e300 * 1e300", "too large", ""),
    ("99999999999999999999", "99999999999999999999", "too large", "2**53"),
    ("1e999", "1e999", "too large", ""),
    ("hits / 0", "0", "divides by zero", ""),
    ("hits % (1 - 1)", "1 - 1", "divides by zero", ""),
    ("hits > 3", "hits > 3", "a score must be a number", "1 if hits > 3 else 0"),
    ("  request.lora ", "request.lora", "a score must be a number", ""),
]


@pytest.mark.parametrize(("text", "place", "message", "help"), SYNTAX + MEANING)
def test_one_located_error(text: str, place: str, message: str, help: str) -> None:
    error = error_of(text)
    assert message in error.message
    assert help in error.help
    assert error.help
    assert text[error.offset : error.offset + error.length] == place
    # `hits` and `(` occur more than once in some texts: the last occurrence is meant, or the only one.
    assert error.offset in (text.find(place), text.rfind(place))


def test_offsets_count_characters_across_lines() -> None:
    text = '\n  request.lora == "é🎈" and\n\thits > 1 and\r\n  nothing\n'
    error = error_of(text, compile_match)
    assert (error.offset, error.length) == (text.index("nothing"), 7)
    text = "\n hits > 1\n and depth_tokens\n  < reuse_gap_s\n"
    error = error_of(text, compile_match)
    assert text[error.offset : error.offset + error.length] == "depth_tokens\n  < reuse_gap_s"
    text = "hits >\n\n"
    assert error_of(text, compile_match).offset == len("hits >")


@pytest.mark.parametrize("text", ["", "  ", "\n\n", "\t"])
def test_an_empty_text(text: str) -> None:
    error = error_of(text)
    assert error.message == "the expression is empty"
    assert error.offset == 0


@pytest.mark.parametrize("name", ["idle_requests", "idle_s", "age_requests", "age_s"])
def test_a_match_reads_nothing_that_moves_with_the_clock(name: str) -> None:
    text = f"hits > 3 and {name} < 9"
    error = error_of(text, compile_match)
    assert text[error.offset : error.offset + error.length] == name
    assert "without one" in error.help


@pytest.mark.parametrize("name", ["hits", "is_output", "idle_s", "reuse_gap_s"])
def test_an_admission_reads_only_what_is_known_before_insertion(name: str) -> None:
    error = error_of(f"{name} > 1", compile_admit)
    assert (error.offset, error.length) == (0, len(name))
    assert "before insertion" in error.help


@pytest.mark.parametrize("compiler", [compile_match, compile_admit])
def test_a_match_is_true_or_false(compiler: Compiler) -> None:
    error = error_of(" depth_tokens * 2", compiler)
    assert (error.offset, error.length) == (1, 16)
    assert "a match must be true or false" in error.message


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hits": 3}, "hides a name"),
        ({"weight": "8"}, "no number"),
        ({"weight": True}, "no number"),
        ({"weight": float("nan")}, "too large"),
        ({"weight": 10**400}, "too large"),
        ({"weight": float("inf")}, "too large"),
    ],
)
def test_a_bad_parameter_is_an_error_where_it_is_used(params: Mapping[str, object], message: str) -> None:
    name = next(iter(params))
    with pytest.raises(ExpressionError, match=message) as caught:
        compile_score(f"1 + {name}", params=params)
    assert (caught.value.offset, caught.value.length) == (4, len(name))
    compile_score("depth_tokens", params=params)


def test_limits() -> None:
    assert error_of("1" + " " * MAX_CHARS).offset == MAX_CHARS
    compile_score("1" + " " * (MAX_CHARS - 1))
    deep = error_of("-" * 60 + "hits")
    assert "deep" in deep.message
    many = error_of(" + ".join(["1"] * MAX_TOKENS))
    assert "tokens" in many.message
    # A chain reads its middle twice: nested chains would double without a bound.
    chain = "hits"
    for _ in range(12):
        chain = f"(1 if 0 < {chain} < 9 else 2)"
    assert "operations" in error_of(chain).message

"""Small members of plain code, for the `function` adapter."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from antiphon.errors import MemberError

LONGEST = 400
"""Characters of an expression."""
MOST_BITS = 4096
"""Size of the numerator and of the denominator of any number on the way."""

_SPELLINGS = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "²": "**2", "³": "**3"}
)
_WORDS = (
    (re.compile(r"\bplus\b"), "+"),
    (re.compile(r"\bminus\b"), "-"),
    (re.compile(r"\b(?:times|multiplied by)\b"), "*"),
    (re.compile(r"\b(?:divided by|over)\b"), "/"),
    (re.compile(r"\b(?:to the power of)\b"), "**"),
    (re.compile(r"\bmod(?:ulo)?\b"), "%"),
    (re.compile(r"\bsquare root of\s*(\d[\d.,]*)"), r"sqrt(\1)"),
    (re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))"), ""),  # 1,234,567
)
_FUNCTIONS = ("sqrt", "abs", "round", "min", "max")
_NAME = rf"(?:{'|'.join(_FUNCTIONS)})(?=\()|\bpi\b"
_EXPRESSION = re.compile(rf"(?:{_NAME}|\d[\d.]*(?:e[+-]?\d+)?|\.\d+|[-+*/%(),\s])+")


def calculator(text: str) -> str:
    """The value of the one arithmetic expression in `text`: exact where it can be, else to 12 digits.

    Numbers, `+ - * / // % **`, brackets, `sqrt abs round min max`, pi; operators may be words ("6 times 7").

    Raises:
        MemberError: `bad_request`; no expression, more than one, or a number that grows too large.
    """
    expression = _expression(text)
    try:
        tree = ast.parse(expression, mode="eval")
        return _shown(_value(tree.body, expression))
    except SyntaxError:
        raise _refusal(f"{expression!r} is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise _refusal(f"{expression!r} divides by zero") from None
    except (OverflowError, ValueError, RecursionError, MemoryError) as error:
        raise _refusal(f"{expression!r} cannot be computed: {error}") from None


def _expression(text: str) -> str:
    said = text.translate(_SPELLINGS).lower()
    for word, symbol in _WORDS:
        said = word.sub(symbol, said)
    found = [span.strip(" \t\r\n,.=") for span in _EXPRESSION.findall(said)]
    found = [span for span in found if any(char.isdigit() for char in span) or "pi" in span]
    if len(found) != 1:
        raise _refusal("found no arithmetic expression" if not found else "found more than one expression")
    expression = " ".join(found[0].split())
    if len(expression) > LONGEST:
        raise _refusal(f"the expression is longer than {LONGEST} characters")
    return expression


def _refusal(why: str) -> MemberError:
    return MemberError("bad_request", f"calculator: {why}; send one, such as: 12 * (3 + 4) / 7")


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            literal = ast.get_source_segment(source, node) or ""
            return _sized(Fraction(literal))  # from the text, so that 0.1 is a tenth
        case ast.Name(id="pi"):
            return Fraction(math.pi)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=inner):
            value = _value(inner, source)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _sized(_OPERATORS[type(op)](_value(left, source), _value(right, source)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            return _apply(name, [_value(argument, source) for argument in arguments])
    raise ValueError("only numbers, + - * / // % **, brackets, sqrt, abs, round, min, max and pi are known")


def _apply(name: str, values: list[Fraction]) -> Fraction:
    if name in ("min", "max"):
        return min(values) if name == "min" else max(values)
    if name == "round" and len(values) == 2 and values[1].denominator == 1 and abs(values[1]) <= 100:
        return Fraction(round(values[0], int(values[1])))
    if len(values) != 1:
        raise ValueError(f"{name} takes one number")
    if name == "sqrt":
        return _root(values[0])
    return abs(values[0]) if name == "abs" else Fraction(round(values[0]))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise ValueError("the square root of a negative number is not real")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else Fraction(math.sqrt(value))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if base < 0:
            raise ValueError("a broken power of a negative number is not real")
        return _root(base) if exponent == Fraction(1, 2) else Fraction(float(base) ** float(exponent))
    if base in (-1, 0, 1):  # any exponent: only its parity and its sign count
        sign = (exponent > 0) - (exponent < 0)
        return Fraction(base ** (sign * (1 if exponent % 2 else 2)))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > 2 * MOST_BITS:
        raise OverflowError("the numbers grow too large")
    return Fraction(base ** int(exponent))


def _sized(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise OverflowError("the numbers grow too large")
    return value


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    for digits in range(1, 13):  # a finite decimal is shown whole
        if (10**digits) % value.denominator == 0:
            scaled = value.numerator * (10**digits // value.denominator)
            whole, rest = divmod(abs(scaled), 10**digits)
            return f"{'-' if scaled < 0 else ''}{whole}.{rest:0{digits}d}".rstrip("0")
    return f"{float(value):.12g}"

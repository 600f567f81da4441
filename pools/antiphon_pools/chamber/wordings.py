"""How the chamber's questions are put: a skill in many wordings, some of them kept for testing alone.

`{x}` stands for what is asked about, `{a}` and `{b}` for numbers. `KEYED` is the short form in which a member can be
asked; `NOUNS` is how a question speaks of the answer to another one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wordings:
    """Attributes:
    test: kept out of training.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]


KEYED = {
    "capital": "capital of {x}",
    "continent": "continent of {x}",
    "currency": "currency of {x}",
    "symbol": "symbol of {x}",
    "number": "atomic number of {x}",
    "sum": "{a} + {b}",
    "difference": "{a} - {b}",
    "product": "{a} * {b}",
    "letters": "letters of {x}",
    "first": "first letter of {x}",
    "last": "last letter of {x}",
}

QUESTIONS = {
    "capital": Wordings(
        (
            "What is the capital of {x}?",
            "Which city is the capital of {x}?",
            "Name the capital city of {x}.",
            "What is {x}'s capital?",
            "Tell me the capital of {x}.",
            "Which capital has {x}?",
            "What city serves as the capital of {x}?",
            "Do you know the capital of {x}?",
        ),
        (
            "The capital of {x} is called what?",
            "Can you say what the capital city of {x} is?",
            "How is {x}'s capital city called?",
            "Give me the name of the city that is {x}'s capital.",
        ),
    ),
    "continent": Wordings(
        (
            "Which continent is {x} in?",
            "On which continent is {x}?",
            "What continent does {x} belong to?",
            "Name the continent of {x}.",
            "On what continent does {x} lie?",
            "Tell me the continent where {x} is found.",
        ),
        (
            "To which of the continents does {x} belong?",
            "If I travel to {x}, on which continent am I?",
            "{x} is part of which continent?",
        ),
    ),
    "currency": Wordings(
        (
            "What is the currency of {x}?",
            "Which currency is used in {x}?",
            "Name the currency of {x}.",
            "What is {x}'s currency?",
            "Tell me the currency of {x}.",
            "What is the money of {x} called?",
        ),
        (
            "With which currency do people pay in {x}?",
            "In {x}, what is the money called?",
            "{x} has which currency?",
        ),
    ),
    "symbol": Wordings(
        (
            "What is the chemical symbol of {x}?",
            "Which symbol stands for {x}?",
            "Give the symbol of the element {x}.",
            "What is the symbol for {x}?",
            "Tell me the chemical symbol for {x}.",
            "How is {x} written in the periodic table?",
        ),
        (
            "By which symbol is {x} known in chemistry?",
            "Chemists write {x} as what?",
            "What is {x}'s symbol in the periodic table?",
        ),
    ),
    "number": Wordings(
        (
            "What is the atomic number of {x}?",
            "Give the atomic number of {x}.",
            "Which atomic number has {x}?",
            "How many protons has {x}?",
            "What number has {x} in the periodic table?",
            "Tell me {x}'s atomic number.",
        ),
        (
            "How many protons are in an atom of {x}?",
            "At which number does {x} stand in the periodic table?",
            "{x} has what atomic number?",
        ),
    ),
    "sum": Wordings(
        (
            "What is {a} plus {b}?",
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "How much is {a} and {b} together?",
            "What is the sum of {a} and {b}?",
            "Work out {a} + {b}.",
        ),
        (
            "What do {a} and {b} add up to?",
            "If you add {b} to {a}, what do you get?",
            "How much is {a} increased by {b}?",
        ),
    ),
    "difference": Wordings(
        ("What is {a} minus {b}?", "What is {a} - {b}?", "Take {b} away from {a}.", "How much is {a} less {b}?"),
        ("By how much is {a} more than {b}?", "How much is {a} reduced by {b}?"),
    ),
    "product": Wordings(
        ("What is {a} times {b}?", "What is {a} * {b}?", "Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
        ("What do you get when you multiply {a} and {b}?", "How much is {a} taken {b} times?"),
    ),
    "letters": Wordings(
        (
            "How many letters are in {x}?",
            "Count the letters of {x}.",
            "How many letters has {x}?",
            "What is the number of letters in {x}?",
        ),
        ("Of how many letters is {x} made?", "How long is {x}, counted in letters?"),
    ),
    "first": Wordings(
        ("What is the first letter of {x}?", "With which letter does {x} begin?", "Name the first letter of {x}."),
        ("Which letter comes first in {x}?", "With what letter does one start to write {x}?"),
    ),
    "last": Wordings(
        ("What is the last letter of {x}?", "With which letter does {x} end?", "Name the last letter of {x}."),
        ("Which letter comes last in {x}?", "What letter stands at the end of {x}?"),
    ),
}

NOUNS = {
    "capital": Wordings(("the capital of {x}", "{x}'s capital"), ("the capital city of {x}",)),
    "continent": Wordings(("the continent of {x}", "the continent where {x} lies"), ("the continent {x} belongs to",)),
    "currency": Wordings(("the currency of {x}", "{x}'s currency"), ("the money used in {x}",)),
    "symbol": Wordings(("the symbol of {x}", "the chemical symbol of {x}"), ("the symbol for the element {x}",)),
    "number": Wordings(("the atomic number of {x}", "{x}'s atomic number"), ("the number of protons in {x}",)),
}


def filled(wording: str, **values: object) -> str:
    """A wording about given things, its first letter in upper case where it is a question."""
    for name, value in values.items():
        wording = wording.replace(f"{{{name}}}", str(value))
    return wording

"""Conversion of option texts into values by the table of options. Errors name the option and the value."""

import difflib
import re
from collections.abc import Container, Mapping

from partibus.spark.errors import OptionError
from partibus.spark.option_table import BY_LOWER_NAME, OPTIONS, Option

_KEY_WORDS = re.compile(r"SharedAccess(Key|Signature)\s*=|SharedAccessSignature\s+s", re.IGNORECASE)
"""Texts in front of a secret."""


def refuse_misplaced_key(given: Mapping[str, str], known: Container[str]) -> None:
    """Refuse a connection string in the place of another value, which errors would show. Raises `OptionError`.

    ``known`` are names of options in lower case; values of other options are never shown.
    """
    secrets = {option.name.lower() for option in OPTIONS if option.is_secret}
    for name, value in given.items():
        if name.lower() in secrets or not (name.lower() == "path" or name.lower() in known):
            continue
        if _KEY_WORDS.search(value):
            raise OptionError(
                f"{'the path' if name.lower() == 'path' else f'option {name!r}'} holds a connection string or a token, "
                'which is not shown here; give it as option "connection", and the queue as option "entity"'
            )


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Refuse names outside `OPTIONS`, with a hint at the nearest one. Raises `OptionError`."""
    refuse_misplaced_key(given, BY_LOWER_NAME)
    for name in given:
        if name.lower() in BY_LOWER_NAME:
            continue
        if name.lower() == "path":
            raise OptionError(
                f"load({given[name]!r}) gives a path; leave it out and name the queue with "
                f'.option("entity", {given[name]!r})'
            )
        raise OptionError(f"unknown option {name!r}; {hint_at(name, BY_LOWER_NAME)}")


def hint_at(name: str, by_lower_name: Mapping[str, Option]) -> str:
    """Return a hint for an unknown option: the nearest one, and all there are."""
    close = difflib.get_close_matches(name.lower(), by_lower_name, n=1)
    hint = f"did you mean {by_lower_name[close[0]].name!r}?" if close else "remove it."
    # An alias is another key of the same option.
    return f"{hint} Options: {', '.join(dict.fromkeys(option.name for option in by_lower_name.values()))}"


def word_of(values: Mapping[str, str], name: str) -> str | None:
    """Return one of the option's choices. Raises `OptionError`."""
    option = BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        return option.default if isinstance(option.default, str) else None
    word = text.strip().lower()
    if word not in option.choices:
        raise OptionError(f"option {name!r} is {text!r}; it must be {' or '.join(map(repr, option.choices))}")
    return word


def flag_of(values: Mapping[str, str], name: str) -> bool:
    """Return a truth value. Raises `OptionError`."""
    text = values.get(name)
    if text is None:
        return BY_LOWER_NAME[name.lower()].default is True
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise OptionError(f"option {name!r} is {text!r}; it must be 'true' or 'false'")
    return word == "true"


def number_of(values: Mapping[str, str], name: str) -> int | None:
    """Return a whole number within the option's bounds. Raises `OptionError`."""
    option = BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        return option.default if isinstance(option.default, int) else None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(
            f"option {name!r} is {text!r}, not a whole number; it must be between {option.low:,} and {option.high:,}"
        ) from None
    if not option.low <= number <= option.high:
        raise OptionError(f"option {name!r} is {number:,}; it must be between {option.low:,} and {option.high:,}")
    return number

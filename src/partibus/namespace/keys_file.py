"""``keys.json``: the access policies of a namespace with their keys, readable by its owner only.

```text
 {"version": 1, "policies": [{"name": …, "rights": ["Manage"], "primaryKey": …, "secondaryKey": …}]}
```

The first start makes the file with one policy and two random keys. It may be edited by hand; a policy may have one key
only (the other one empty).
"""

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from partibus.durable import replace_file
from partibus.errors import UnusableFile
from partibus.namespace.access import (
    EMULATOR_KEY,
    KEY_CHARS_MIN,
    RIGHTS,
    ROOT_POLICY,
    AccessPolicies,
    SasPolicy,
    rights_of,
)

FILE_NAME = "keys.json"
VERSION = 1
KEY_BYTES = 32

_SIZE_MAX_BYTES = 1024 * 1024
_FORM = "Correct it, or move it away: new keys are made at the next start, and clients must be given them."


def load_policies(data_directory: Path, *, emulator: bool = False, emulator_operates: bool = True) -> AccessPolicies:
    """Load the policies in ``keys.json``; the first start makes the file.

    Raises `UnusableFile` when other users can read the file, or it has another form; the file stays as it is.
    """
    path = data_directory / FILE_NAME
    try:
        text = _read(path)
        if text is None:
            text = _first_keys()
            _write_owner_only(path, text)
    except OSError as error:
        raise UnusableFile(
            str(path), f"can't be used ({error.strerror})", "Check that the directory exists, is writable and has room."
        ) from error
    return AccessPolicies(_parse(path, text), emulator=emulator, emulator_operates=emulator_operates)


def new_key() -> str:
    """Make a random key in the form of the service's keys.

    The randomness comes from the system and never from a seed: a key must not be guessable.
    """
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _first_keys() -> bytes:
    policy = {"name": ROOT_POLICY, "rights": ["Manage"], "primaryKey": new_key(), "secondaryKey": new_key()}
    return json.dumps({"version": VERSION, "policies": [policy]}, indent=2).encode() + b"\n"


def _read(path: Path) -> bytes | None:
    """Return the content of a file, or None when it does not exist."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        mode = stat.S_IMODE(os.fstat(file).st_mode)
        if mode & 0o077:
            raise UnusableFile(
                str(path),
                f"holds keys and has the mode {mode:o}, so others than its owner can use it",
                f"Run: chmod 600 {path}. Replace the keys if another user may have read them.",
            )
        return stream.read(_SIZE_MAX_BYTES + 1)


def _write_owner_only(path: Path, text: bytes) -> None:
    replace_file(path, text)


def _parse(path: Path, text: bytes) -> list[SasPolicy]:
    def refuse(reason: str) -> UnusableFile:
        return UnusableFile(str(path), reason, _FORM)

    if len(text) > _SIZE_MAX_BYTES:
        raise refuse(f"has more than {_SIZE_MAX_BYTES} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"is no JSON ({error})") from error
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise UnusableFile(
            str(path), f"has version {version}, newer than {VERSION}", "Use a newer version of partibus."
        )
    if version != VERSION or not isinstance(document.get("policies"), list):
        raise refuse(f'must be an object with "version": {VERSION} and an array "policies"')
    policies = [_policy(entry, index, refuse) for index, entry in enumerate(document["policies"])]
    if len({policy.name for policy in policies}) != len(policies):
        raise refuse("names a policy twice")
    return policies


def _policy(entry: Any, index: int, refuse: Callable[[str], UnusableFile]) -> SasPolicy:
    place = f"policies[{index}]"
    if not isinstance(entry, dict) or entry.keys() - {"name", "rights", "primaryKey", "secondaryKey"}:
        raise refuse(f"{place} must be an object of name, rights, primaryKey and secondaryKey")
    name, rights = entry.get("name"), entry.get("rights")
    primary, secondary = entry.get("primaryKey", ""), entry.get("secondaryKey", "")
    if not isinstance(name, str) or not name:
        raise refuse(f"{place}.name must be text")
    if not isinstance(rights, list) or not rights or not all(isinstance(r, str) and r in RIGHTS for r in rights):
        raise refuse(f"{place}.rights must be an array of {', '.join(RIGHTS)}")
    if not isinstance(primary, str) or not isinstance(secondary, str) or not (primary or secondary):
        raise refuse(f"{place} must have a primaryKey or a secondaryKey, in text")
    short = min(len(key) for key in (primary, secondary) if key)
    if short < KEY_CHARS_MIN and EMULATOR_KEY not in (primary, secondary):
        raise refuse(f"{place} has a key of {short} characters, but needs {KEY_CHARS_MIN}, so that it can't be guessed")
    if EMULATOR_KEY in (primary, secondary):
        raise refuse(f"{place} has the emulator's key, which everybody knows; serve with --emulator to accept it")
    return SasPolicy(name, rights_of(rights), primary, secondary)

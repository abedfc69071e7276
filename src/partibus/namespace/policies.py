"""Access policies of a namespace: their bounds, their completion with keys and times, and their file.

``keys.json`` holds the policies with their keys, and is readable by its owner only:

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partibus.durable import replace_file
from partibus.errors import ArgumentError, EntityExists, EntityNotFound, UnusableFile
from partibus.namespace.access import (
    EMULATOR_KEY,
    KEY_CHARS_MIN,
    RIGHTS,
    ROOT_POLICY,
    AccessPolicies,
    Right,
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


TEXT_MAX = 256
"""Characters of a name or key."""


def policy_path(owner: str, name: str) -> str:
    """Return the name of a policy in errors."""
    return f"{owner}/AuthorizationRules/{name}" if owner else f"AuthorizationRules/{name}"


def first_policies(now_ms: int) -> tuple[SasPolicy, ...]:
    """Return the policies of a new namespace: one with all rights and keys of its own."""
    return completed([SasPolicy(ROOT_POLICY, Right.MANAGE, "", "")], (), now_ms)


def completed(
    policies: Iterable[SasPolicy], known: Sequence[SasPolicy], now_ms: int, make_key: Callable[[], str] = new_key
) -> tuple[SasPolicy, ...]:
    """Return the complete policies of an entity, in order of name.

    ``known`` are its present ones, whose times stay where nothing changes. An empty key is generated. Raises
    `ArgumentError` for an invalid name, key or set of rights, and for a repeated name.
    """
    old = {policy.name: policy for policy in known}
    new: dict[str, SasPolicy] = {}
    for policy in policies:
        if policy.name in new:
            raise ArgumentError("KeyName", policy.name, "in the list once", "Leave the other out.")
        new[policy.name] = _completed(policy, old.get(policy.name), now_ms, make_key)
    return tuple(policy for _, policy in sorted(new.items()))


def without(policies: Sequence[SasPolicy], owner: str, name: str) -> tuple[SasPolicy, ...]:
    """Return all policies but the one of that name. Raises EntityNotFound."""
    _find(policies, owner, name)
    return tuple(policy for policy in policies if policy.name != name)


def with_policy(policies: Sequence[SasPolicy], policy: SasPolicy) -> list[SasPolicy]:
    """Return the policies with this one added or replaced."""
    return [*(known for known in policies if known.name != policy.name), policy]


def regenerated(policies: Sequence[SasPolicy], owner: str, name: str, *, secondary: bool) -> list[SasPolicy]:
    """Return the policies with a new key in one of them. Raises EntityNotFound for an unknown name."""
    old = _find(policies, owner, name)
    return with_policy(
        policies, replace(old, secondary_key=new_key()) if secondary else replace(old, primary_key=new_key())
    )


def check_not_fixed(is_fixed: bool, name: str) -> None:
    """Raise EntityExists for a policy of the keys file, which is changed there."""
    if is_fixed:
        raise EntityExists(f"{policy_path('', name)} of keys.json")


def _find(policies: Sequence[SasPolicy], owner: str, name: str) -> SasPolicy:
    for policy in policies:
        if policy.name == name:
            return policy
    raise EntityNotFound(policy_path(owner, name))


def _completed(policy: SasPolicy, known: SasPolicy | None, now_ms: int, make_key: Callable[[], str]) -> SasPolicy:
    name = policy.name
    if not 1 <= len(name) <= TEXT_MAX or not name.isprintable():
        raise ArgumentError("KeyName", name, f"1 to {TEXT_MAX} printable characters")
    if policy.rights not in (
        Right.SEND,
        Right.LISTEN,
        Right.SEND | Right.LISTEN,
        Right.MANAGE,
    ):
        raise ArgumentError("Rights", str(policy.rights), "Send, Listen, both, or Manage, which implies both")
    kept = () if known is None else known.keys
    for field, key in (("PrimaryKey", policy.primary_key), ("SecondaryKey", policy.secondary_key)):
        if len(key) > TEXT_MAX:
            raise ArgumentError(field, f"{len(key)} characters", f"at most {TEXT_MAX} characters long")
        if key == EMULATOR_KEY:
            raise ArgumentError(field, "the emulator's", "a key that not everybody knows", "Leave it out: one is made.")
        if 0 < len(key) < KEY_CHARS_MIN and key not in kept:
            raise ArgumentError(
                field,
                f"{len(key)} characters",
                f"at least {KEY_CHARS_MIN} characters long, so that it can't be guessed",
                "Leave it out: one is made.",
            )
    primary = policy.primary_key or make_key()
    secondary = policy.secondary_key or make_key()
    if known is not None and (known.rights, *known.keys) == (policy.rights, primary, secondary):
        return known
    created_ms = now_ms if known is None else known.created_ms
    return SasPolicy(name, policy.rights, primary, secondary, created_ms, now_ms)

"""The file that says that a broker is ready, and how to reach it; and what a start prepares for it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partibus.errors import ArgumentError
from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY, AccessPolicies, Right, SasPolicy
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_apply import apply_namespaces
from partibus.namespace.config_json import read_config_json
from partibus.namespace.namespace_options import DEFAULT_ID
from partibus.node.settings import Ports, Settings
from partibus.node.tls import prepare_certificate

Keys = Mapping[str, SasPolicy | None]
"""A policy with all rights, if there is one, by name of each namespace but the default one."""


def remove_ready_file(settings: Settings) -> None:
    """Remove the ready file of a former run, which readers would take for this run's.

    The caller has the lock of the data directory, so a running broker keeps its file. Raises `ArgumentError` where this
    run can't write one.
    """
    path = settings.ready_file
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
        part = _part_of(path)
        part.touch(mode=0o600)
        part.unlink()
    except OSError as error:
        bound = f"a file in a directory that can be written ({error.strerror})"
        folder = path.absolute().parent
        advice = "Name a file elsewhere." if folder.is_dir() else f"Make the directory {folder} first."
        raise ArgumentError("--ready-file", str(path), bound, advice) from error


def prepare_namespaces(settings: Settings, catalog: Catalog, now_ms: int) -> Keys:
    """Apply the configuration file to the catalog, prepare the certificate, and return the namespaces' first keys.

    Raises `ConfigError`, `UnusableFile`, and the errors of reading the catalog.
    """
    if settings.config is not None:
        apply_namespaces(catalog, read_config_json(settings.config), now_ms)
    keys = _first_keys(catalog)
    prepare_certificate(settings, keys)
    return keys


def _first_keys(catalog: Catalog) -> Keys:
    """Return the first keys of the present namespaces."""
    found: dict[str, SasPolicy | None] = {}
    for record in catalog.list_namespaces():
        if record.namespace_id != DEFAULT_ID:
            able = [
                one
                for one in catalog.of(record.namespace_id).namespace_policies()
                if one.rights is Right.MANAGE and one.keys
            ]
            found[record.name] = min(able, key=lambda one: one.name != ROOT_POLICY, default=None)
    return found


def publish_ready(
    settings: Settings, access: AccessPolicies, ports: Ports, brokers: list[dict[str, Any]], keys: Keys
) -> dict[str, Any]:
    """Write the ready file, if ``settings`` name one, and return its content.

    ``brokers``: ``id``, ``pid`` and number of ``stores`` of each. ``keys``: of the ``namespaces`` beside the default
    one.
    """
    key = EMULATOR_KEY if settings.emulator else access.policy(ROOT_POLICY).primary_key
    document = {
        "pid": os.getpid(),
        "amqp_port": ports.amqp,
        "http_port": ports.http,
        "amqps_port": ports.amqps,
        "https_port": ports.https,
        "sqs_port": ports.sqs,
        "sqs_tls_port": ports.sqs_tls,
        "connection_string": _connection_string(settings, ports, "", ROOT_POLICY, key),
        "namespaces": [
            {"name": name, "connection_string": _connection_string(settings, ports, name, one.name, one.primary_key)}
            for name, one in keys.items()
            if one is not None
        ],
        "brokers": brokers,
    }
    if settings.ready_file is not None:
        _write_ready_file(settings.ready_file, document)
    return document


def _connection_string(settings: Settings, ports: Ports, namespace: str, policy: str, key: str) -> str:
    """Return a connection string. An address can't name a namespace, so the name alone stands for the host there."""
    if settings.host in ("127.0.0.1", "0.0.0.0", "::"):
        host = f"{namespace}.localhost" if namespace else "localhost"
    else:
        is_address = ":" in settings.host or settings.host.replace(".", "").isdigit()
        host = namespace if namespace and is_address else ".".join(filter(None, (namespace, settings.host)))
    return (
        f"Endpoint=sb://{host}:{ports.amqp};SharedAccessKeyName={policy};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true;"
    )


def _write_ready_file(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file as a whole. It holds a key, so only its owner may read it."""
    part = _part_of(path)
    part.touch(mode=0o600)
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")

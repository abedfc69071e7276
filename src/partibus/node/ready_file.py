"""The file that says that a broker is ready, and how to reach it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY, AccessPolicies
from partibus.node.settings import Ports, Settings


def ready_document(
    settings: Settings, access: AccessPolicies, pid: int, ports: Ports, brokers: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the ready file says; ``brokers``: ``id``, ``pid`` and number of ``stores`` of each."""
    host = "localhost" if settings.host in ("127.0.0.1", "0.0.0.0", "::") else settings.host
    key = EMULATOR_KEY if settings.emulator else access.policy(ROOT_POLICY).primary_key
    return {
        "pid": pid,
        "amqp_port": ports.amqp,
        "http_port": ports.http,
        "amqps_port": ports.amqps,
        "https_port": ports.https,
        "connection_string": (
            f"Endpoint=sb://{host}:{ports.amqp};SharedAccessKeyName={ROOT_POLICY};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        ),
        "brokers": brokers,
    }


def write_ready_file(path: Path, document: Mapping[str, Any]) -> None:
    """Readers see all of the file or none: it holds a key, so only its owner may read it."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)

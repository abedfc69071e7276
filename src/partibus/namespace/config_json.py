"""Config.json, the file of entities that Microsoft's Service Bus emulator reads at its start.

```text
 {"UserConfig": {
     "Namespaces": [{
         "Name": "sbemulatorns",
         "Queues": [{"Name": …, "Properties": {…}}],
         "Topics": [{"Name": …, "Properties": {…}, "Subscriptions": […]}]}],
     "Logging": {"Type": "File"}}}
```

Entities take every property of the service (`properties`), also those that the emulator does not know, such as
EnablePartitioning. An omitted property has the service's default, not the emulator's. A subscription without rules has
the one that selects everything. The reader is strict: it refuses names and values that are unknown, misspelt or out of
range, so that the entities are those that the file declares.

One of the namespaces is the server's default one, whatever the file calls it: ``sbemulatorns``, as the emulator knows
no other name, or ``default``, or else the first. The others are made by their names.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.namespace.config_document import ConfigError, Document, Problem
from partibus.namespace.config_names import declared_name
from partibus.namespace.config_topics import DeclaredTopic, read_properties, read_topic
from partibus.namespace.entities import EntityDescription, EntityKind
from partibus.namespace.names import check_namespace_name, check_short_name, fold_name
from partibus.namespace.namespace_options import DEFAULT_NAME

_DEFAULT_NAMES = ("sbemulatorns", DEFAULT_NAME)
_LOGGING_TYPES = ("File", "Console", "File,Console", "Console,File")


class DeclaredQueue(Struct, frozen=True):
    """A queue, and where the file says so."""

    path: str
    description: EntityDescription


class Config(Struct, frozen=True):
    """The declarations of a Config.json.

    Its logging is checked and has no effect: the flags of partibus decide that.
    """

    file: str
    namespace_name: str
    queues: tuple[DeclaredQueue, ...]
    topics: tuple[DeclaredTopic, ...] = ()
    others: tuple["Config", ...] = ()
    """The namespaces beside the default one."""


def read_config_json(file: Path) -> Config:
    """Return the checked content of ``file``. Raises `ConfigError` with all problems."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), [Problem("$", f"can't be read: {error.strerror}. Check its path.")]) from error
    return parse_config_json(text, str(file))


def parse_config_json(text: bytes, file: str = "Config.json") -> Config:
    """Return the checked content of a document; ``file`` is its name in errors."""
    document = Document(file, text)
    root = document.members(document.root, "$", ("UserConfig",), required=("UserConfig",))
    config = Config(file, "", ())
    if "UserConfig" in root:
        config = _user_config(document, root["UserConfig"], "$.UserConfig", file)
    document.finish()
    return config


def _user_config(document: Document, value: object, path: str, file: str) -> Config:
    members = document.members(value, path, ("Namespaces", "Logging"), required=("Namespaces",))
    if "Logging" in members:
        _check_logging(document, members["Logging"], f"{path}.Logging")
    if "Namespaces" not in members:
        return Config(file, "", ())
    namespaces = document.elements(members["Namespaces"], f"{path}.Namespaces")
    if not namespaces and isinstance(members["Namespaces"], list):
        document.refuse(f"{path}.Namespaces", "is empty, but must have a namespace")
    taken: dict[str, str] = {}
    configs = [_namespace(document, element, element_path, file, taken) for element_path, element in namespaces]
    if not configs:
        return Config(file, "", ())
    default = next((one for one in configs if fold_name(one.namespace_name) in _DEFAULT_NAMES), configs[0])
    others = [one for one in configs if one is not default]
    for (element_path, _), one in zip(namespaces, configs, strict=True):
        if one is not default and one.namespace_name:
            _check_other(document, one.namespace_name, f"{element_path}.Name")
    return replace(default, others=tuple(others))


def _check_other(document: Document, name: str, path: str) -> None:
    """One that is made by its name."""
    try:
        check_namespace_name(name)
    except ArgumentError as error:
        document.refuse(path, str(error))
    if fold_name(name) == DEFAULT_NAME:
        document.refuse(path, f"is '{name}', which is the default namespace; the file has that already")


def _check_logging(document: Document, value: object, path: str) -> None:
    logging = document.members(value, path, ("Type",), required=("Type",))
    if "Type" in logging:
        document.choice(logging["Type"], f"{path}.Type", _LOGGING_TYPES)


def _namespace(document: Document, value: object, path: str, file: str, taken: dict[str, str]) -> Config:
    members = document.members(value, path, ("Name", "Queues", "Topics"), required=("Name",))
    name = declared_name(document, members, path, taken, check_short_name)
    names: dict[str, str] = {}
    queues = [
        _queue(document, element, queue_path, names)
        for queue_path, element in document.elements(members.get("Queues", []), f"{path}.Queues")
    ]
    topics = [
        read_topic(document, element, topic_path, names)
        for topic_path, element in document.elements(members.get("Topics", []), f"{path}.Topics")
    ]
    return Config(file, name, tuple(queues), tuple(topics))


def _queue(document: Document, value: object, path: str, taken: dict[str, str]) -> DeclaredQueue:
    """Return the queue as far as it can be read; `Document.finish` refuses a document with problems."""
    members = document.members(value, path, ("Name", "Properties"), required=("Name",))
    name = declared_name(document, members, path, taken)
    options = read_properties(document, members, path, EntityKind.QUEUE)
    return DeclaredQueue(path, EntityDescription(name, options))

"""Names in a configuration document: well-formed, and each given once."""

from collections.abc import Callable, Mapping

from partibus.errors import ArgumentError
from partibus.namespace.config_document import Document
from partibus.namespace.names import check_entity_name, fold_name


def declared_name(
    document: Document,
    members: Mapping[str, object],
    path: str,
    taken: dict[str, str],
    check: Callable[[str], str] = check_entity_name,
) -> str:
    """Return the ``Name`` of the object at ``path``; empty when it is missing or refused.

    ``taken`` has the paths of earlier names by folded name, and gets this one.
    """
    if "Name" not in members:
        return ""
    name_path = f"{path}.Name"
    name = members["Name"]
    if not isinstance(name, str):
        return document.text(name, name_path)
    try:
        check(name)
    except ArgumentError as error:
        document.refuse(name_path, str(error))
        return ""
    first = taken.setdefault(fold_name(name), name_path)
    if first != name_path:
        document.refuse(name_path, f"'{name}' is already the name at {first} (names compare without case); rename one")
        return ""
    return name

"""``GET /$namespaceinfo``."""

from starlette.responses import Response

from partibus.frontends.rest.atom import names
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.envelope import Entry, namespace_name
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml_out import text_element


async def get_namespace_info(call: Call) -> Response:
    """What kind of namespace it is. Nobody writes down when one was made; it is as old as its oldest entity."""
    name = namespace_name(call.base)
    created_ms = min((queue.created_ms for queue in call.broker.namespace), default=call.broker.clock.now_ms())
    modified_ms = max((queue.updated_ms for queue in call.broker.namespace), default=created_ms)
    content = (
        text_element("Alias", "")
        + text_element("CreatedTime", date_text(created_ms))
        + text_element("MessagingSKU", "Standard")
        + text_element("ModifiedTime", date_text(modified_ms))
        + text_element("Name", name)
        + text_element("NamespaceType", "Messaging")
    )
    entry = Entry("$namespaceinfo", name, names.NAMESPACE_INFO, content, created_ms, modified_ms)
    return call.show(entry, f'"{modified_ms}"')

"""``GET /$namespaceinfo``."""

from starlette.responses import Response

from partibus.frontends.rest.atom import names
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.envelope import Entry, namespace_name
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml_out import text_element
from partibus.namespace.tiers import Tier


async def get_namespace_info(call: Call) -> Response:
    """Show the properties of the namespace.

    The default one has the name that the client uses. Until it is changed its time of creation is not stored: it is as
    old as its oldest entity.
    """
    namespace = call.broker.namespace
    record = namespace.record
    name = namespace_name(call.base) if call.broker.is_default else record.name
    created_ms, modified_ms = record.created_ms, record.updated_ms
    if not created_ms:
        created_ms = min((queue.created_ms for queue in namespace), default=call.broker.clock.now_ms())
        modified_ms = max((queue.updated_ms for queue in namespace), default=created_ms)
    options = record.options
    units = text_element("MessagingUnits", str(options.units)) if options.tier is Tier.PREMIUM else ""
    content = (
        text_element("Alias", "")
        + text_element("CreatedTime", date_text(created_ms))
        + text_element("MessagingSKU", options.tier.value.capitalize())
        + units
        + text_element("ModifiedTime", date_text(modified_ms))
        + text_element("Name", name)
        + text_element("NamespaceType", "Messaging")
    )
    entry = Entry("$namespaceinfo", name, names.NAMESPACE_INFO, content, created_ms, modified_ms)
    return call.show(entry, f'"{modified_ms}"')

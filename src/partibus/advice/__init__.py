"""Advice on performance: the scenarios of the service's guidance as data, and rules that compare live entities with it.

Everything here is pure. The public client sets itself up by a profile. `partibus advise` and the portal collect facts
about an entity and ask the rules. The guidance is the article "Best practices for performance improvements using
Service Bus brokered messaging" (2015), with two sentences of "Partitioned queues and topics".
"""

"""The Service Bus dialect of AMQP 1.0, server side: the meaning of links and nodes for queues.

The protocol itself is `partibus.amqp`. Here its events become commands to entities, and answers become frames.
"""

"""The Service Bus dialect of AMQP 1.0, server side: what links and nodes mean to queues.

The protocol itself is `partibus.amqp`; here its events become commands to entities, and answers become frames.
"""

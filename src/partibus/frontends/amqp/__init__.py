"""The Service Bus dialect of AMQP 1.0, server side: the meaning of links and nodes for queues.

The protocol itself is `partibus.amqp`. Here its events become commands to entities, and answers become frames.
"""

WEBSOCKET_PATH = "/$servicebus/websocket"
CALLED = "partibus.called"
"""The extra information of a websocket that holds the server's name as requested by its client."""

"""The namespaces and words of the documents (dialect section 9.3)."""

ATOM = "http://www.w3.org/2005/Atom"
SERVICE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

QUEUE = "QueueDescription"
TOPIC = "TopicDescription"
SUBSCRIPTION = "SubscriptionDescription"
RULE = "RuleDescription"
NAMESPACE_INFO = "NamespaceInfo"

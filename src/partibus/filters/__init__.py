"""Rules of subscriptions: which messages they select, and how they change the copies (rows C38, R5).

The package is pure: it turns a rule's text and values into a function of a message. It does not know the subscribers.
"""

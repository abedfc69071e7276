"""Rules of subscriptions: which messages they select, and what they change in the copies (rows C38, R5).

Pure: a rule comes in as text and values, and leaves as a function of a message. Nothing here knows who subscribes.
"""

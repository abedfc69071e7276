"""Queues over HTTP as Amazon SQS has them: AWS JSON 1.0 and the Query protocol (rows S10, S13).

```text
 server.py ─┐                          bytes of a connection <-> requests and answers
 web.py ────┴▶ service.py              credentials, protocol, action; one call each
                ├ signature.py         Signature Version 4
                ├ protocol.py          which protocol a request speaks
                │   ├ shapes.py        the one table of actions and their members
                │   └ wire_json.py, wire_query.py
                └ actions/             an action a file, with its batch twin
                    ├ names.py, attributes.py, queues.py     URLs, ARNs, what a queue is told to be
                    └ messages.py, handles.py                messages and receipt handles
```

A standard queue is a plain queue, a FIFO queue an entity with message sessions and duplicate detection. Clients of
every protocol see the same messages.
"""

"""Messages over HTTP: send, receive, settle (dialect section 10; rows C1, C5, C6, C12, C21).

```text
 api.py ── calls.py          requests about messages, and their resources
   ├ send.py                 one message, or a batch in JSON
   └ receive.py              the next message, deleted or under lock; complete, unlock, renew
 message_in.py, message_out.py      headers and bodies <-> messages
```

No batches of receives, no prefetch, no sessions, no deferral and no dead-lettering, as in the service.
"""

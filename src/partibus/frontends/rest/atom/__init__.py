"""The admin API: entities, subscriptions and rules as ATOM documents over HTTP (dialect section 9).

```text
 api.py ── claims.py        who may
   │  └─── paths.py         what the URL names
   ├ queues, topics, subscriptions, rules, namespace_info, lists       one resource each: request, checks, answer
   │    └─ descriptions.py  elements <-> properties; rule_xml.py, policy_xml.py: what has a form of its own
   ├ envelope.py            entry and feed
   └ errors.py              refusals
 xml_in.py, xml_out.py      XML, whatever it says
```
"""

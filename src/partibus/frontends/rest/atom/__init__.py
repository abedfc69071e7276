"""The admin API: entities, subscriptions and rules as ATOM documents over HTTP (dialect section 9).

```text
 api.py ── claims.py        authorization
   │  └─── paths.py         resources of URLs
   ├ queues, topics, subscriptions, rules, namespace_info, lists       one resource each: request, checks, answer
   │    └─ descriptions.py  elements <-> properties; rule_xml.py, policy_xml.py: parts with a form of their own
   ├ envelope.py            entry and feed
   └ errors.py              refusals
 xml_in.py, xml_out.py      XML in general
```
"""

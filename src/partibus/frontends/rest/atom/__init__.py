"""The admin API: entities, subscriptions and rules as ATOM documents over HTTP (dialect section 9).

```text
 api.py ── calls.py         authorization, and the resources of URLs
   ├ entities.py, rules.py, lists.py      one resource each: request, checks, answer
   │    ├ descriptions.py   elements <-> properties, values.py their forms
   │    └ counts.py         messages and sizes in descriptions
   └ envelope.py            entry and feed around descriptions; refusals
 xml.py                     XML in general
```
"""

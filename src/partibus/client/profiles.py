"""The seven scenarios of the service's guidance as settings of a client (rows C26 to C34).

```python
from partibus.client import profiles

profile = profiles.choose(5_000, senders=2, receivers=3)    # by rate and clients: high-throughput
settings = profile.settings(rate_per_s=500, receivers=3)    # connections, batching, prefetch, properties of the entity
client = Client(connection_string, **settings.client_arguments)
print(profile.sentences["batching"][-1].text)               # the sentence of the guidance
```

`RATES` and `CLIENTS` are the table of classes that select a profile.
"""

from partibus.advice.classes import CLIENTS, RATES, Band, Level, client_class, rate_class
from partibus.advice.guidance import Sentence
from partibus.advice.profiles import PROFILES, PrefetchRule, Profile, Settings, choose, profile_named

__all__ = [
    "CLIENTS",
    "PROFILES",
    "RATES",
    "Band",
    "Level",
    "PrefetchRule",
    "Profile",
    "Sentence",
    "Settings",
    "choose",
    "client_class",
    "profile_named",
    "rate_class",
]

"""What a person should do about a load, in words."""

from collections.abc import Iterator, Sequence
from typing import Any

from partibus.pipeline.balance import Merge, Plan, Prediction, Split
from partibus.pipeline.loads import Loads

Values = dict[str, Any]


def advice(
    loads: Loads, count: int, predictions: Sequence[Prediction], planned: Plan, keys: Sequence[Values], ratio: float
) -> list[str]:
    """Sentences, the most important first. ``count``: the partitions of now, which are among ``predictions``; ``keys``:
    the largest ones, as the result has them; ``ratio``: times the mean that a partition may carry."""
    if not loads.slots:
        return ["No message has a key: the load spreads evenly over any number of partitions."]
    now = next(one for one in predictions if one.partitions == count)
    return [
        *_keys(keys, ratio),
        *(_even(now) if now.skew.largest_over_mean <= ratio else _hot(now, predictions, planned)),
        *_merges(planned),
        *_doubt(loads, now),
    ]


def _keys(keys: Sequence[Values], ratio: float) -> Iterator[str]:
    for key in keys:
        if key["hot"] and key["times_mean"] > ratio:
            yield (
                f"The key '{key['key']}' alone has {key['share']:.1%} of the load, {key['times_mean']:.1f} times what "
                "a partition has on average: no number of partitions takes that from its partition. Use a finer key, "
                "as the key and something of the message, where the order of the whole key is not needed."
            )


def _even(now: Prediction) -> Iterator[str]:
    yield (
        f"The busiest of {now.partitions} partitions carries {now.skew.largest_over_mean:.2f} times the mean: nothing "
        "to do."
        if now.partitions > 1
        else "There is one partition, which carries everything."
    )


def _hot(now: Prediction, predictions: Sequence[Prediction], planned: Plan) -> Iterator[str]:
    splits = sum(isinstance(action, Split) for action in planned.actions)
    if splits:
        yield (
            f"With {splits} split{'s' if splits > 1 else ''} the busiest partition carries {max(planned.shares):.1%} "
            f"of the load instead of {now.largest_share:.1%}."
        )
    for run in planned.stuck:
        yield (
            f"No split helps partition {run.partition}: nearly all of its load is in one slot, that is, mostly of one "
            "key."
        )
    better = [one for one in predictions if one.largest_share < 0.75 * now.largest_share]
    if better:
        yield (
            f"With {better[0].partitions} partitions the busiest would carry {better[0].largest_share:.1%}: all "
            f"together are worth {better[0].effective_partitions:.1f} full ones, now {now.effective_partitions:.1f}."
        )


def _merges(planned: Plan) -> Iterator[str]:
    merges = sum(isinstance(action, Merge) for action in planned.actions)
    if merges:
        yield f"{merges} merge{'s' if merges > 1 else ''} of cold neighbours would free as many partitions."


def _doubt(loads: Loads, now: Prediction) -> Iterator[str]:
    if now.error > 0.1 * now.largest_share:
        yield (
            f"Only {loads.rows:,} messages are known: the largest share may be off by {now.error:.1%}. Look at a "
            "longer time, or sample more."
        )

"""The profiles set what the guidance says, scenario by scenario, and the classes have its bounds."""

from __future__ import annotations

import pytest

from partibus.client import profiles
from partibus.client.aio import Client
from partibus.client.profiles import CLIENTS, PROFILES, RATES, Profile, choose, client_class, rate_class
from partibus.errors import ArgumentError

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
SETTINGS = {"partitioned", "connections", "batching", "store_batching", "prefetch", "express"}


@pytest.mark.row("C27")
@pytest.mark.parametrize(
    ("per_s", "level"),
    [(0, "small"), (0.99, "small"), (1, "medium"), (99.9, "medium"), (100, "high"), (1e6, "high")],
)
def test_rates_fall_into_the_classes_of_the_guidance(per_s: float, level: str) -> None:
    assert rate_class(per_s) == level


@pytest.mark.row("C27")
@pytest.mark.parametrize(
    ("clients", "level"), [(0, "small"), (5, "small"), (6, "medium"), (20, "medium"), (21, "large"), (5_000, "large")]
)
def test_numbers_of_clients_fall_into_the_classes_of_the_guidance(clients: int, level: str) -> None:
    assert client_class(clients) == level


@pytest.mark.parametrize("bands", [RATES, CLIENTS])
def test_classes_follow_one_another_without_a_gap(bands: tuple[profiles.Band, ...]) -> None:
    assert bands[0].least == 0
    assert [band.below for band in bands[:-1]] == [band.least for band in bands[1:]]
    assert bands[-1].below == float("inf")


@pytest.mark.parametrize("measure", [rate_class, client_class])
def test_a_negative_value_has_no_class(measure: object) -> None:
    with pytest.raises(ValueError, match="is -1, it must be 0 to"):
        measure(-1)  # type: ignore[operator]


def test_seven_profiles_name_a_sentence_for_each_setting() -> None:
    assert sorted(profile.row for profile in PROFILES.values()) == [f"C{number}" for number in range(28, 35)]
    for profile in PROFILES.values():
        assert set(profile.sentences) == SETTINGS
        for sentences in profile.sentences.values():
            assert sentences
            assert all(sentence.section and sentence.text.endswith((".", "!")) for sentence in sentences)


def arguments(profile: Profile, **clients: float) -> tuple[int, float, int]:
    made = profile.client_arguments(**clients)  # type: ignore[arg-type]
    return made["connections"], made["batch_flush_interval"], made["prefetch"]


@pytest.mark.row("C28")
def test_high_throughput_uses_several_connections_long_batches_and_a_third_of_the_lock() -> None:
    profile = PROFILES["high-throughput"]
    assert profile.connections > 1
    assert arguments(profile, rate_per_s=10, senders=1, receivers=3)[1:] == (0.05, 200)
    assert arguments(profile, rate_per_s=10, senders=2)[1:] == (0.1, 200)
    assert profile.prefetch_of_factory(10, 3) == 600, "the example of the guidance: 20 x 3 x 10"
    assert profile.entity_properties == {
        "EnablePartitioning": True, "EnableBatchedOperations": True, "EnableExpress": False,
    }  # fmt: skip


@pytest.mark.row("C28")
def test_a_shorter_lock_has_a_smaller_cache_and_a_longer_one_no_larger_cache() -> None:
    profile = PROFILES["high-throughput"]
    assert arguments(profile, rate_per_s=30, lock_s=30)[2] == 300
    assert arguments(profile, rate_per_s=30, lock_s=300)[2] == 600


@pytest.mark.row("C29")
def test_several_queues_have_the_settings_of_one_and_a_client_each() -> None:
    one, several = PROFILES["high-throughput"], PROFILES["several-queues"]
    assert arguments(several, rate_per_s=100, senders=2) == arguments(one, rate_per_s=100, senders=2)
    assert several.entity_properties == one.entity_properties
    assert "dedicated client for each entity" in several.sentences["connections"][-1].text
    assert choose(50, queues=3) is several
    assert choose(0.5, queues=3) is not several, "the scenario is for medium and high rates"


@pytest.mark.row("C30")
def test_low_latency_batches_nothing_and_prefetches_for_a_single_receiver_only() -> None:
    profile = PROFILES["low-latency"]
    assert arguments(profile, rate_per_s=5) == (1, 0.0, 100)
    assert arguments(profile, rate_per_s=5, receivers=2) == (1, 0.0, 0)
    assert profile.entity_properties["EnableBatchedOperations"] is False


@pytest.mark.row("C31")
def test_many_senders_have_one_connection_each_and_the_default_interval() -> None:
    profile = PROFILES["many-senders"]
    assert arguments(profile, rate_per_s=10, senders=1) == (1, 0.02, 200)
    assert profile.entity_properties["EnableBatchedOperations"] is True
    assert choose(20, senders=21, receivers=5) is profile
    assert choose(20, senders=20, receivers=5) is not profile


@pytest.mark.row("C32")
def test_many_receivers_have_a_cache_of_ten_whatever_their_rate() -> None:
    profile = PROFILES["many-receivers"]
    assert arguments(profile, rate_per_s=1_000) == (1, 0.02, 10)
    assert arguments(profile, rate_per_s=1_000, receivers=30)[2] == 10
    assert choose(500, receivers=21) is profile
    assert choose(500, receivers=20) is not profile


@pytest.mark.row("C33")
def test_a_topic_with_few_subscriptions_has_several_connections_and_the_default_interval() -> None:
    profile = PROFILES["few-subscriptions"]
    assert profile.topic
    assert profile.connections > 1
    assert arguments(profile, rate_per_s=10)[1:] == (0.02, 200)
    assert choose(10_000, subscriptions=5) is profile


@pytest.mark.row("C34")
def test_a_topic_with_many_subscriptions_has_one_connection_and_the_default_interval() -> None:
    profile = PROFILES["many-subscriptions"]
    assert profile.topic
    assert arguments(profile, rate_per_s=10) == (1, 0.02, 200)
    assert choose(10_000, subscriptions=6) is profile
    assert choose(10_000, subscriptions=2_000) is profile


def test_the_goal_of_a_queue_with_few_clients_follows_its_rate() -> None:
    assert choose(100).name == "high-throughput"
    assert choose(99).name == "low-latency"
    assert choose(0.1, senders=5, receivers=5).name == "low-latency"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate_per_s": -1}, "-1"),
        ({"rate_per_s": 1, "senders": -1}, "-1"),
        ({"rate_per_s": 1, "queues": 0}, "queues is 0"),
        ({"rate_per_s": 1, "subscriptions": 2_001}, "subscriptions is 2001, it must be 0 to 2,000; forward messages"),
        ({"rate_per_s": float("nan")}, "rate_per_s is nan, it must be 0 to 1,000,000,000"),
        ({"rate_per_s": "5"}, "rate_per_s is '5'"),
        ({"rate_per_s": 1, "senders": 1.5}, "a whole number"),
    ],
)
def test_impossible_numbers_are_refused_with_value_and_bound(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choose(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate_per_s": -1}, "rate_per_s is -1, it must be 0 to 1,000,000,000; measure"),
        ({"rate_per_s": float("inf")}, "rate_per_s is inf"),
        ({"receivers": 0}, "receivers is 0, it must be 1 to"),
        ({"receivers": 1.5}, "receivers is 1.5, it must be a whole number"),
        ({"senders": -1}, "senders is -1"),
        ({"lock_s": 0}, "lock_s is 0, it must be 1 to 300.0; give the LockDuration"),
        ({"lock_s": float("nan")}, "lock_s is nan"),
    ],
)
@pytest.mark.parametrize("name", ["high-throughput", "low-latency", "many-receivers"])
def test_settings_of_impossible_numbers_are_refused(name: str, arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        profiles.PROFILES[name].settings(**arguments)  # type: ignore[arg-type]


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'fast', it must be one of high-throughput, several-queues"):
        profiles.profile_named("fast")


def settings_of(**arguments: object) -> tuple[int, float, int]:
    made = Client(CONNECTION, **arguments).settings  # type: ignore[arg-type]
    return made.connections, made.flush_interval, made.prefetch


@pytest.mark.row("C30")
def test_a_client_for_low_latency_sends_at_once() -> None:
    assert settings_of(profile="low-latency") == (1, 0.0, 20)


@pytest.mark.row("C28")
def test_a_client_for_high_throughput_takes_the_settings_of_the_profile() -> None:
    assert settings_of(profile="high-throughput") == (profiles.PROFILES["high-throughput"].connections, 0.05, 2_000)
    for_two = profiles.PROFILES["high-throughput"].settings(rate_per_s=10, senders=2, receivers=2)
    assert settings_of(profile=for_two)[1:] == (0.1, 200)


@pytest.mark.row("C32")
def test_a_client_of_many_receivers_prefetches_ten() -> None:
    assert settings_of(profile="many-receivers") == (1, 0.02, 10)


def test_given_settings_have_precedence_over_the_profile() -> None:
    assert settings_of(profile="high-throughput", connections=2, prefetch=0)[::2] == (2, 0)
    assert settings_of() == (1, 0.02, 0)


def test_a_client_refuses_an_unknown_profile_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="high-throughput, several-queues"):
        settings_of(profile="fast")

"""Requests to actions: the caller, its namespace, and the operation.

The service knows no sockets: `server` and `web` give it complete requests, and it calls back with one answer for each.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from partibus.errors import PartibusError
from partibus.frontends.admission import SignIns
from partibus.frontends.sqs.actions import ACTIONS, OF_MESSAGES
from partibus.frontends.sqs.calls import Call, Caller, Respond
from partibus.frontends.sqs.errors import THROTTLED, SqsError
from partibus.frontends.sqs.names import Home, QueueName, name_of_url, path_of, region_of
from partibus.frontends.sqs.protocol import Parsed, Request
from partibus.frontends.sqs.signature import (
    Keys,
    Signed,
    canonical_request,
    check_signed_headers,
    check_time,
    is_good,
    read_signed,
    text_to_sign,
)
from partibus.frontends.sqs.state import Ids, SqsState
from partibus.namespace.access import Grant
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.sas import Path
from partibus.routing.fault_injections import CallLater

_POLICIES_MAX: Final = 10_000
"""Access key ids whose keys are remembered, known or not."""


class SqsService(SqsState):
    """Answers requests of SQS, whichever port they come to."""

    def __init__(
        self,
        namespaces: Namespaces,
        home: Home,
        call_later: CallLater,
        now_ms: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        ids: Ids,
        sign_ins: SignIns,
        *,
        emulator: bool = False,
        purge_interval_ms: int = 60_000,
        recreate_after_ms: int = 0,
        propagation_ms: int = 60_000,
    ) -> None:
        """Serve the queues of all namespaces. ``emulator``: accept every access key, and requests without one.

        The other arguments are those of `SqsState`.
        """
        super().__init__(
            namespaces,
            home,
            call_later,
            now_ms,
            soon,
            ids,
            purge_interval_ms=purge_interval_ms,
            recreate_after_ms=recreate_after_ms,
            propagation_ms=propagation_ms,
        )
        self._emulator = emulator
        self._sign_ins = sign_ins
        self._keys = Keys()
        self.new_request_id: Callable[[], str] = map(f"{ids.next()[:-12]}%012x".__mod__, count(1)).__next__
        """Returns another request's UUID. All requests to this process share its beginning; a number follows. Built-in
        functions make it: every request takes one, and the calls of a request are counted.
        """
        self._policies: dict[tuple[int, str, Path], tuple[int, list[Grant]]] = {}
        """The grants by namespace, access key id and queue with a policy of its own, with the version of the policies.
        """

    def handle(
        self, request: Request, parsed: Parsed, respond: Respond, claimed: Callable[[Broker], None]
    ) -> Call | None:
        """Carry out a request. ``claimed`` is called when it has shown a good signature.

        Returns the call while it is under way, so that it can be told that its client has left.
        """
        request_id = self.new_request_id()
        broker = self.namespaces.of_host(request.headers.get("host"))
        call = Call(self, broker, _NOBODY, request, parsed, request_id, respond)
        try:
            call.caller = self._caller(broker, request, parsed)
            claimed(broker)
            if parsed.error is not None:
                raise parsed.error
            action = ACTIONS[parsed.action]
            if parsed.action in OF_MESSAGES:
                action(call)
            else:
                call.admit_management(partial(action, call))
        except _RefusedKey as refused:
            if refused.delay_s:
                self.call_later(refused.delay_s * 1000, partial(call.refuse, refused.error))
            else:
                call.refuse(refused.error)
        except (SqsError, PartibusError) as error:
            call.refuse(error)
        except Exception:  # noqa: BLE001 - a bug of ours: it ends this request and no other
            call.fail()
        return None if call.is_answered else call

    # -- credentials ---------------------------------------------------------------------------------------------------

    def _caller(self, broker: Broker, request: Request, parsed: Parsed) -> Caller:
        if self._emulator:
            try:
                signed = read_signed(request.headers, parsed.url_parameters)
                return Caller(*_ANYONE if signed is None else (signed.key_id, None), self._region(signed))
            except SqsError:
                return Caller(*_ANYONE, self.home.region)
        signed = read_signed(request.headers, parsed.url_parameters)
        if signed is None:
            raise SqsError(
                "MissingAuthenticationToken", "The request must contain a valid access key id and signature."
            )
        is_noted = self._sign_ins.is_noted(request.host, signed.key_id)
        if not is_noted and not self._sign_ins.may_try(request.host, signed.key_id):
            raise SqsError("RequestThrottled", THROTTLED)
        check_time(signed, broker.wall_clock.now_ms())
        if not signed.headers.covers_all:
            check_signed_headers(signed, request.headers)
        grant = self._signer(broker, request, parsed, signed)
        if not is_noted:
            self._sign_ins.succeeded(request.host, signed.key_id)
        return Caller(signed.key_id, grant, region_of(self.home, signed.region))

    def _region(self, signed: Signed | None) -> str:
        return region_of(self.home, None if signed is None else signed.region)

    def _signer(self, broker: Broker, request: Request, parsed: Parsed, signed: Signed) -> Grant:
        grants = self._grants(broker, parsed, signed)
        if not grants:
            raise self._refused(
                request, signed, "InvalidClientTokenId", "The security token included in the request is invalid."
            )
        given_hash = request.headers.get("x-amz-content-sha256")
        if given_hash is not None and given_hash != parsed.body_hash:
            raise self._refused(request, signed, "SignatureDoesNotMatch", "The body does not have the signed hash.")
        canonical = canonical_request(
            signed, request.method, request.path, request.query, request.headers, parsed.body_hash
        )
        text = text_to_sign(signed, canonical)
        # A good key ends the search: its time tells a client which of the policy's keys the client has itself. A bad
        # signature takes the time of all keys.
        for grant in grants:
            if is_good(signed.signature, self._keys.of(grant.key, signed.date, signed.region).sign(text)):
                return grant
        raise self._refused(
            request,
            signed,
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method.",
        )

    def _grants(self, broker: Broker, parsed: Parsed, signed: Signed) -> list[Grant]:
        """Return the grants of the keys that may have signed a request, by the queue that it names."""
        access, name = broker.access, signed.key_id
        path: Path = ()
        if access.in_entities(name):
            named = self._path(parsed, signed)
            path = named if access.in_entities(name, named) else ()
        key = (broker.namespace.namespace_id, name, path)
        known = self._policies.get(key)
        if known is None or known[0] != access.version:
            if len(self._policies) >= _POLICIES_MAX:
                self._policies.clear()
            known = self._policies[key] = (access.version, access.signing_keys(name, path))
        return known[1]

    def _path(self, parsed: Parsed, signed: Signed) -> Path:
        """Return the path of the queue that a request names; empty for none."""
        members = parsed.members or {}
        text = members.get("QueueUrl") or members.get("QueueName")
        if not isinstance(text, str):
            return ()
        try:
            region, name = name_of_url(text)
            if region is None or self.home.one_region:
                region = self._region(signed)
        except SqsError:
            return ()
        return path_of(self.home, QueueName(region, name))

    def _refused(self, request: Request, signed: Signed, code: str, message: str) -> "_RefusedKey":
        return _RefusedKey(SqsError(code, message), self._sign_ins.failed(request.host, signed.key_id))


class _RefusedKey(Exception):
    """A signature that is not good: its answer may wait."""

    def __init__(self, error: SqsError, delay_s: float) -> None:
        super().__init__(error.message)
        self.error = error
        self.delay_s = delay_s


_ANYONE: Final = ("AIDAANYONE", None)
_NOBODY: Final = Caller("", None, "")

"""The errors of SQS: one table from codes to both protocols' names, and one from the core's errors to codes."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from partibus import errors as core
from partibus.errors import PartibusError

_SQS: Final = "com.amazonaws.sqs#"
_CORAL: Final = "com.amazon.coral.service#"
_PREFIXED: Final = "AWS.SimpleQueueService."


class Form(NamedTuple):
    """An error's name in JSON and its HTTP status. The status in the Query protocol differs for one of them."""

    json_type: str
    status: int
    query_status: int


def _modelled(name: str, status: int = 400, query_status: int | None = None) -> Form:
    return Form(_SQS + name, status, query_status or status)


def _general(name: str, status: int = 400) -> Form:
    return Form(_CORAL + name, status, status)


FORMS: Final[Mapping[str, Form]] = {
    f"{_PREFIXED}NonExistentQueue": _modelled("QueueDoesNotExist"),
    "QueueAlreadyExists": _modelled("QueueNameExists"),
    f"{_PREFIXED}QueueDeletedRecently": _modelled("QueueDeletedRecently"),
    f"{_PREFIXED}PurgeQueueInProgress": _modelled("PurgeQueueInProgress", 403),
    f"{_PREFIXED}EmptyBatchRequest": _modelled("EmptyBatchRequest"),
    f"{_PREFIXED}TooManyEntriesInBatchRequest": _modelled("TooManyEntriesInBatchRequest"),
    f"{_PREFIXED}BatchEntryIdsNotDistinct": _modelled("BatchEntryIdsNotDistinct"),
    f"{_PREFIXED}InvalidBatchEntryId": _modelled("InvalidBatchEntryId"),
    f"{_PREFIXED}BatchRequestTooLong": _modelled("BatchRequestTooLong"),
    f"{_PREFIXED}MessageNotInflight": _modelled("MessageNotInflight"),
    f"{_PREFIXED}UnsupportedOperation": _modelled("UnsupportedOperation"),
    "InvalidAttributeName": _modelled("InvalidAttributeName"),
    "InvalidAttributeValue": _modelled("InvalidAttributeValue"),
    "InvalidMessageContents": _modelled("InvalidMessageContents"),
    "InvalidAddress": _modelled("InvalidAddress"),
    "InvalidSecurity": _modelled("InvalidSecurity"),
    "ReceiptHandleIsInvalid": _modelled("ReceiptHandleIsInvalid", 400, 404),
    "ResourceNotFoundException": _modelled("ResourceNotFoundException", 404),
    "OverLimit": _modelled("OverLimit", 403),
    "RequestThrottled": _modelled("RequestThrottled", 403),
    "InvalidParameterValue": _general("InvalidParameterValueException"),
    "MissingParameter": _general("MissingRequiredParameterException"),
    "AccessDenied": _general("AccessDeniedException", 403),
    "InvalidAction": _general("InvalidAction"),
    "UnknownOperationException": Form(_CORAL + "UnknownOperationException", 400, 404),
    "SerializationException": _general("SerializationException"),
    "InvalidClientTokenId": _general("InvalidClientTokenId", 403),
    "MissingAuthenticationToken": _general("MissingAuthenticationToken", 403),
    "IncompleteSignature": _general("IncompleteSignature"),
    "RequestExpired": _general("RequestExpired"),
    "SignatureDoesNotMatch": _general("SignatureDoesNotMatch", 403),
    "ServiceUnavailable": _general("ServiceUnavailable", 503),
    "InternalFailure": _general("InternalFailure", 500),
}
"""Every error by its code in the Query protocol, which is also the code in a batch's answer."""


class SqsError(Exception):
    """An answer that refuses a request, or one entry of a batch."""

    def __init__(self, code: str, message: str, query_message: str | None = None) -> None:
        """``query_message``: the text in the Query protocol where it differs."""
        message = encodable(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.query_message = message if query_message is None else encodable(query_message)

    @property
    def form(self) -> Form:
        """The names and statuses of the code."""
        return FORMS[self.code]

    @property
    def is_sender_fault(self) -> bool:
        """Whether the client, not the broker, has to change something."""
        return self.form.status < 500


def is_encodable(text: str) -> bool:
    """Tell whether a text has no half of a character, which JSON can write but UTF-8 can not."""
    return encodable(text) == text


def encodable(text: str) -> str:
    """Return a text with a question mark for each half of a character.

    Texts of errors show values of the request, which can have them. Neither answers nor logs can.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def no_such_queue() -> SqsError:
    """Return the error for a queue that does not exist; its text differs between the protocols."""
    text = "The specified queue does not exist"
    return SqsError(f"{_PREFIXED}NonExistentQueue", f"{text}.", f"{text} for this wsdl version.")


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """Return the error for a parameter out of its bounds."""
    return SqsError("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    """Return the error for a required parameter that is missing."""
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def prefixed(name: str, message: str) -> SqsError:
    """Return an error whose code in the Query protocol has the service's prefix."""
    return SqsError(_PREFIXED + name, message)


THROTTLED: Final = "Request is throttled."

_CODES: Final[Mapping[type[PartibusError], str]] = {
    core.EntityExists: "QueueAlreadyExists",
    core.EntityChanged: "InvalidParameterValue",
    core.InvalidOperation: f"{_PREFIXED}UnsupportedOperation",
    core.ArgumentError: "InvalidParameterValue",
    core.MessageTooLarge: "InvalidParameterValue",
    core.QuotaExceeded: "OverLimit",
    core.MessageLockLost: "InvalidParameterValue",
    core.MessageNotFound: "InvalidParameterValue",
    core.SessionLockLost: "InvalidParameterValue",
    core.SessionCannotBeLocked: "InvalidParameterValue",
    core.ReadExclusively: f"{_PREFIXED}UnsupportedOperation",
    core.CursorHeld: f"{_PREFIXED}UnsupportedOperation",
    core.CursorLost: "InvalidParameterValue",
    core.TransactionUnknown: "InvalidParameterValue",
    core.TransactionRolledBack: "InvalidParameterValue",
    core.TransactionTimedOut: "InvalidParameterValue",
    core.EntityDisabled: f"{_PREFIXED}UnsupportedOperation",
    core.Unauthorized: "AccessDenied",
    core.StoreUnavailable: "ServiceUnavailable",
    core.OutcomeUnknown: "ServiceUnavailable",
    core.Unsupported: f"{_PREFIXED}UnsupportedOperation",
    core.Timeout: "ServiceUnavailable",
    core.InternalError: "InternalFailure",
}
"""The code of each error of the core, beside those that `of_core` gives a text of SQS."""


def of_core(error: PartibusError) -> SqsError:
    """Return the error of SQS for an error of the core."""
    if isinstance(error, core.EntityNotFound):
        return no_such_queue()
    if isinstance(error, core.ServerBusy):
        return SqsError("RequestThrottled", THROTTLED)
    return SqsError(_CODES.get(type(error), "InternalFailure"), str(error))

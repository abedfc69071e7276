import pytest

from partibus.errors import ArgumentError
from partibus.namespace.connection_string import ConnectionString, parse_connection_string

EMULATOR = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)
SECRET = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (
            EMULATOR,
            ConnectionString(
                host="localhost", key_name="RootManageSharedAccessKey", key="SAS_KEY_VALUE", emulator=True
            ),
        ),
        (
            f"Endpoint=sb://ns.example:5671/;SharedAccessKeyName=n;SharedAccessKey={SECRET};EntityPath=eu/q",
            ConnectionString(host="ns.example", port=5671, key_name="n", key=SECRET, entity_path="eu/q"),
        ),
        (
            "endpoint=sb://h/; sharedaccesskeyname = n ;SHAREDACCESSKEY=k=;usedevelopmentemulator=True",
            ConnectionString(host="h", key_name="n", key="k=", emulator=True),
        ),
        (
            "HostName=h:1;SharedAccessKeyName=n;SharedAccessKey=k",
            ConnectionString(host="h", port=1, key_name="n", key="k"),
        ),
        (
            "Endpoint=sb://[::1]:5672;SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=1&skn=c",
            ConnectionString(host="[::1]", port=5672, signature="SharedAccessSignature sr=a&sig=b&se=1&skn=c"),
        ),
    ],
)
def test_accepted_forms_and_back(text: str, parsed: ConnectionString) -> None:
    assert parse_connection_string(text) == parsed
    assert parse_connection_string(parsed.text) == parsed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "with an Endpoint"),
        ("SharedAccessKeyName=n;SharedAccessKey=k", "with an Endpoint"),
        ("Endpoint=http://h/;SharedAccessKeyName=n;SharedAccessKey=k", "sb://host/"),
        ("Endpoint=sb://h:70000/;SharedAccessKeyName=n;SharedAccessKey=k", "1 to 65535"),
        ("Endpoint=sb://h/q;SharedAccessKeyName=n;SharedAccessKey=k", "sb://host/"),
        ("Endpoint=sb://h/", "with SharedAccessKeyName and SharedAccessKey"),
        ("Endpoint=sb://h/;SharedAccessKeyName=n", "with SharedAccessKeyName and SharedAccessKey"),
        ("Endpoint=sb://h/;SharedAccessKey=k", "with SharedAccessKeyName and SharedAccessKey"),
        ("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=k;SharedAccessSignature=s", "Signature alone"),
        ("Endpoint=sb://h/;SharedAccessKeyNam=n;SharedAccessKey=k", "'SharedAccessKeyNam', .*mean SharedAccessKeyName"),
        (
            "Endpoint=sb://h/;Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=k",
            "'Endpoint', but must be there once",
        ),
        ("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=1", "true or false"),
    ],
)
def test_another_form_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        parse_connection_string(text)


def test_it_is_never_printed_with_its_secret() -> None:
    key = parse_connection_string(f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={SECRET}")
    token = parse_connection_string(f"Endpoint=sb://h/;SharedAccessSignature={SECRET}")
    assert SECRET not in repr(key) + str(key) + repr(token) + str(token)


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://h/;SharedAccessKeyName=n;{SECRET}",
        f"Endpoint=sb://h/;SharedAccessKey={SECRET}",
        f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={SECRET};SharedAccessKey={SECRET}",
        f"Endpoint=sb://h/;{SECRET}==x;SharedAccessKeyName=n",
    ],
)
def test_no_refusal_repeats_a_secret(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_connection_string(text)
    assert SECRET.rstrip("=") not in str(caught.value)

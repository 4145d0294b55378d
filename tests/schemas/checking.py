"""Checks JSON texts against the schemas of tests/data/schemas, by python-jsonschema and by checks of
formats of its own: nothing here is shared with the program that wrote the texts."""

import datetime
import decimal
import ipaddress
import json
import pathlib
import re
import urllib.parse
import uuid

import jsonschema

SCHEMAS = pathlib.Path(__file__).resolve().parent.parent / "data" / "schemas"
formats = jsonschema.FormatChecker(formats=())


def format_check(name):
    def register(function):
        def of_strings(value):  # other types have no such format
            return not isinstance(value, str) or function(value)

        formats.checks(name, raises=(ValueError, AssertionError))(of_strings)
        return function

    return register


@format_check("date")
def is_date(text):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", text)
    return bool(datetime.date.fromisoformat(text))


@format_check("time")
def is_time(text):
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-](\d\d):(\d\d))", text)
    assert match
    hour, minute, second = (int(match[i]) for i in (1, 2, 3))
    return hour < 24 and minute < 60 and second < 61 and int(match[6] or 0) < 24 and int(match[7] or 0) < 60


@format_check("date-time")
def is_date_time(text):
    date, _, time = text.partition("T")
    return is_date(date) and is_time(time)


@format_check("duration")
def is_duration(text):
    match = re.fullmatch(r"P(?:(\d+W)|(\d+Y)?(\d+M)?(\d+D)?(?:T(\d+H)?(\d+M)?(\d+S)?)?)", text)
    return bool(match) and not text.endswith(("P", "T"))


@format_check("email")
def is_email(text):
    local, _, domain = text.rpartition("@")
    assert re.fullmatch(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*", local)
    return len(local) <= 64 and is_hostname(domain)


@format_check("hostname")
def is_hostname(text):
    labels = text.split(".")
    return len(text) <= 253 and all(
        re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", label) for label in labels
    )


@format_check("ipv4")
def is_ipv4(text):
    return bool(ipaddress.IPv4Address(text))


@format_check("ipv6")
def is_ipv6(text):
    return ipaddress.IPv6Address(text) is not None


@format_check("uuid")
def is_uuid(text):
    return str(uuid.UUID(text)) == text.lower()


@format_check("uri")
def is_uri(text):
    parts = urllib.parse.urlsplit(text)
    assert re.fullmatch(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*", text)
    assert not re.search(r"%(?![0-9A-Fa-f]{2})", text)
    return bool(parts.scheme and parts.netloc)


@format_check("json-pointer")
def is_json_pointer(text):
    return re.fullmatch(r"(/([^/~]|~[01])*)*", text) is not None


@formats.checks("int32")
def is_int32(number):
    return not isinstance(number, int) or -(2**31) <= number < 2**31


def multiple_fault(validator, of, value, schema):
    """In decimals, as they are written: 0.57 is a multiple of 0.01, though 0.57 / 0.01 in floating
    point, with which python-jsonschema decides, is not whole."""
    if validator.is_type(value, "number"):
        with decimal.localcontext(prec=400):
            if decimal.Decimal(repr(value)) % decimal.Decimal(repr(of)) != 0:
                yield jsonschema.ValidationError(f"{value} is not a multiple of {of}")


Draft7, Draft202012 = (
    jsonschema.validators.extend(draft, {"multipleOf": multiple_fault})
    for draft in (jsonschema.Draft7Validator, jsonschema.Draft202012Validator)
)


def load(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def names():
    return sorted(path.stem for path in SCHEMAS.glob("*.json"))


def reject_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError(f"a name twice in one object: {keys}")
    return dict(pairs)


def fault(text, schema, twice_is_fault=True):
    """None if `text` is JSON that holds against `schema`, else what is wrong."""
    try:
        hook = reject_duplicates if twice_is_fault else None
        value = json.loads(text, object_pairs_hook=hook)
        json.dumps(value, ensure_ascii=False).encode()  # no half characters
    except ValueError as error:
        return f"no JSON: {error}"
    # A list under items is of the drafts before 2020-12.
    kind = Draft7 if '"items": [' in json.dumps(schema) else Draft202012
    error = jsonschema.exceptions.best_match(kind(schema, format_checker=formats).iter_errors(value))
    return error.message if error else None

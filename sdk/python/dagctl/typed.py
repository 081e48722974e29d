"""JSON to typed values and back, by annotations.

Supported types: a dataclass, a TypedDict, a class with `model_validate` (as pydantic's have), str, int, float, bool, None,
Any, list, tuple, dict, Optional, Union, Literal, an Enum, datetime, date, UUID, Decimal, and combinations of these.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import json
import re
import typing
import uuid
from typing import Any, Callable, Dict, List, Literal, Mapping, Type, TypeVar, Union, cast

T = TypeVar("T")

# `X | Y` has a type of its own since Python 3.10.
_UNIONS = tuple(u for u in (Union, getattr(__import__("types"), "UnionType", None)) if u is not None)


class Mismatch(ValueError):
    """A value does not fit its type. The message says where."""


def decode(wanted: Type[T], value: Any, where: str = "value") -> T:
    """Convert a JSON value to `wanted`. Fields that a dataclass does not have are ignored."""
    return cast(T, _decode(wanted, value, where))


def _decode(wanted: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any or wanted is object or isinstance(wanted, TypeVar):
        return value
    if hasattr(wanted, "__supertype__"):  # NewType
        return _decode(wanted.__supertype__, value, where)
    if hasattr(wanted, "__metadata__"):  # Annotated
        return _decode(wanted.__origin__, value, where)
    if origin in _UNIONS:
        return _one_of(args, value, where)
    if origin is Literal:
        if value in args:
            return value
        raise Mismatch(f"{where} is not one of {', '.join(map(repr, args))}")
    if wanted is None or wanted is type(None):
        if value is None:
            return None
        raise _wrong(where, "null", value)
    if isinstance(wanted, type) and hasattr(wanted, "model_validate"):
        try:
            return wanted.model_validate(value)
        except ValueError as error:
            raise Mismatch(f"{where}: {error}") from None
    if dataclasses.is_dataclass(wanted):
        return _fields(wanted, value, where)
    if isinstance(wanted, type) and issubclass(wanted, dict) and hasattr(wanted, "__total__"):  # TypedDict
        return _keys(wanted, value, where)
    if origin in (list, collections.abc.Sequence, collections.abc.Iterable) or wanted is list:
        return [_decode(args[0] if args else Any, v, f"{where}[{i}]") for i, v in enumerate(_list(value, where))]
    if origin is tuple or wanted is tuple:
        return _tuple(args, _list(value, where), where)
    if origin in (dict, collections.abc.Mapping) or wanted is dict:
        return {k: _decode(args[1] if args else Any, v, f"{where}.{k}") for k, v in _object(value, where).items()}
    return _scalar(wanted, value, where)


def _one_of(args: typing.Tuple[Any, ...], value: Any, where: str) -> Any:
    faults = []
    for candidate in args:
        try:
            return _decode(candidate, value, where)
        except Mismatch as mismatch:
            if candidate is not type(None):
                faults.append(str(mismatch))
    raise Mismatch(" or ".join(faults) or f"{where} has none of the permitted types")


def _fields(wanted: Any, value: Any, where: str) -> Any:
    given, hints, found = _object(value, where), typing.get_type_hints(wanted), {}
    for field in dataclasses.fields(wanted):
        if not field.init:
            continue
        name = str(field.metadata.get("json", field.name))
        if name in given:
            found[field.name] = _decode(hints[field.name], given[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Mismatch(f"{where}.{name} is missing")
    return wanted(**found)


def _keys(wanted: Any, value: Any, where: str) -> Dict[str, Any]:
    given, hints = _object(value, where), typing.get_type_hints(wanted)
    for name in sorted(wanted.__required_keys__):
        if name not in given:
            raise Mismatch(f"{where}.{name} is missing")
    return {k: _decode(hints[k], v, f"{where}.{k}") if k in hints else v for k, v in given.items()}


def _tuple(args: typing.Tuple[Any, ...], values: List[Any], where: str) -> Any:
    if not args or len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0] if args else Any, v, f"{where}[{i}]") for i, v in enumerate(values))
    if len(args) != len(values):
        raise Mismatch(f"{where} has {len(values)} elements, not {len(args)}")
    return tuple(_decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, values)))


def _scalar(wanted: Any, value: Any, where: str) -> Any:
    if wanted is bool or wanted is str:
        if isinstance(value, wanted):
            return value
    elif wanted is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif wanted is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif wanted in (datetime.datetime, datetime.date, uuid.UUID, decimal.Decimal):
        return _parsed(wanted, value, where)
    elif isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        try:
            return wanted(value)
        except ValueError:
            raise Mismatch(f"{where} is not one of {', '.join(repr(m.value) for m in wanted)}") from None
    else:
        raise TypeError(f"{where}: JSON cannot be decoded to {wanted!r}; use a dataclass, or Any")
    raise _wrong(where, _NAMES[wanted], value)


_NAMES = {bool: "a boolean", str: "a string", int: "an integer", float: "a number"}


def _parsed(wanted: Any, value: Any, where: str) -> Any:
    try:
        if wanted is decimal.Decimal and isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool):
            return decimal.Decimal(str(value))
        if isinstance(value, str):
            if wanted is datetime.datetime:
                return timestamp(value)
            return wanted.fromisoformat(value) if wanted is datetime.date else wanted(value)
    except (ValueError, decimal.InvalidOperation):
        pass
    raise _wrong(where, f"a {wanted.__name__}", value)


def timestamp(text: str) -> datetime.datetime:
    """Parse RFC 3339; datetime reads neither "Z" nor nanoseconds before Python 3.11."""
    text = re.sub(r"[zZ]$", "+00:00", text)
    text = re.sub(r"\.(\d+)", lambda m: "." + m.group(1)[:6].ljust(6, "0"), text)
    return datetime.datetime.fromisoformat(text)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise _wrong(where, "an object", value)


def _list(value: Any, where: str) -> List[Any]:
    if isinstance(value, list):
        return value
    raise _wrong(where, "a list", value)


def _wrong(where: str, wanted: str, value: Any) -> Mismatch:
    # A payload may be confidential, so the message does not quote the value.
    return Mismatch(f"{where} is {_KINDS.get(type(value), type(value).__name__)}, not {wanted}")


_KINDS: Mapping[Any, str] = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object",
}


def encode(value: Any, key: Callable[[Any], str] = str) -> Any:
    """Convert dataclasses, times, enums and containers of them to a JSON value. `key` makes texts of the keys of dicts."""
    if value is None or isinstance(value, (str, bool)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return encode(value.value, key)
    if isinstance(value, (int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {str(f.metadata.get("json", f.name)): encode(getattr(value, f.name), key) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key(k): encode(v, key) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(v, key) for v in value]
    if isinstance(value, datetime.datetime) or isinstance(value, datetime.date) or isinstance(value, datetime.time):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    dump, item = getattr(value, "model_dump", None), getattr(value, "item", None)
    if dump is not None:  # pydantic's
        return dump(mode="json")
    if item is not None and not hasattr(value, "__len__"):  # a number of numpy's
        return encode(item())
    raise TypeError(f"a {type(value).__name__} cannot be encoded as JSON")


def text_key(key: Any) -> str:
    """Return a key of a dict, which in rows is a text: 1 and "1" would be one."""
    if not isinstance(key, str):
        raise TypeError(f"the key {key!r}, which is not a text")
    return str.__str__(key)  # of an Enum its value


def misfit(value: Any) -> str:
    """Say what of a value of a row cannot be written and where; nothing if all can. NaN and infinities can."""
    try:
        return _fault(value, "", text_key, finite=False)
    except RecursionError:
        return "what is nested too deeply, or holds itself"


def sound(value: Any) -> Any:
    """Convert a value as `encode` does. Raises Mismatch, which says what of it is not JSON and where."""
    try:
        encoded = encode(value)
        _dumped(encoded)
    except RecursionError:
        raise Mismatch("it is nested too deeply, or holds itself") from None
    except (TypeError, ValueError) as error:
        raise Mismatch(_fault(value, "") or str(error)) from None
    return encoded


def _dumped(encoded: Any, finite: bool = True) -> bytes:
    return json.dumps(encoded, allow_nan=not finite, ensure_ascii=False).encode()


def _fault(value: Any, where: str, key: Callable[[Any], str] = str, finite: bool = True) -> str:
    """Find the innermost part of a value that is not JSON. Its text is not quoted, because it may be confidential."""
    at = f" at {where}" if where else ""
    try:
        for place, part in _parts(value):
            fault = _fault(part, (where + place).lstrip("."), key, finite)
            if fault:
                return fault
        encoded = encode(value, key)
    except TypeError as error:
        return f"{error}{at}" if isinstance(value, Mapping) else f"a {type(value).__name__}{at}"
    except ValueError as error:  # pydantic's
        return f"{error}{at}"
    try:
        _dumped(encoded, finite)
    except UnicodeEncodeError:
        return f"half of a surrogate pair{at}"
    except ValueError as error:
        if isinstance(encoded, float):
            return json.dumps(encoded) + at  # NaN, Infinity or -Infinity
        return f"{error}{at}"
    return ""


def _parts(value: Any) -> List[typing.Tuple[str, Any]]:
    """List the parts of what `encode` takes as a container, each with its place in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.metadata.get('json', f.name)}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [(f".{k}", v) for k, v in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{i}]", v) for i, v in enumerate(value)]
    if hasattr(value, "model_dump"):
        return _parts(value.model_dump(mode="json"))
    return []

"""Arrow's columns as Python objects: whole columns at once, and only those that a mapping reads.

The same objects as pyarrow's `to_pylist`, which makes a scalar of each value first: for chat messages that
takes ten times as long.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.data.columns import Columns, ToRow, near_names, parts_of

if TYPE_CHECKING:
    import pyarrow


def names_read(make: ToRow | None, schema: "pyarrow.Schema") -> list[str]:
    """The columns of `schema` that `make` reads, in their order.

    All of them where only `make` knows, or where one that it needs is missing: then the error names them all.
    """
    names: list[str] = schema.names
    if not isinstance(make, Columns) or not all(_has(schema, path) for path in (make.prompt, make.answer)):
        return names
    read = {parts_of(path, names)[0] for path in (make.prompt, make.answer)}
    read |= {"verifier", *near_names("verifier", tuple(names))}
    return [name for name in names if name in read]


def _has(schema: "pyarrow.Schema", path: str) -> bool:
    import pyarrow.types as kinds

    name, *inner = parts_of(path, schema.names)
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    for part in inner:
        if kinds.is_struct(kind) and kind.get_field_index(part) >= 0:
            kind = kind.field(part).type
        elif kinds.is_list(kind) and part.isdecimal():
            kind = kind.value_type
        else:
            return False
    return True


def rows_of_batch(batch: "pyarrow.RecordBatch", names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of `batch`, with the columns `names`."""
    columns = [to_objects(batch.column(name)) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def to_objects(array: "pyarrow.Array") -> list[Any]:
    """The objects that `array.to_pylist()` makes."""
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _listed(array)
    if kinds.is_struct(kind) and kind.num_fields:
        return _structs(array)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _lists(array)
    if kinds.is_dictionary(kind):
        return to_objects(array.dictionary_decode())
    is_number = kinds.is_integer(kind) or kinds.is_float32(kind) or kinds.is_float64(kind)
    # Numpy has no numbers that are missing.
    if array.null_count == 0 and (is_number or kinds.is_boolean(kind)):
        return _listed(array)
    objects: list[Any] = array.to_pylist()
    return objects


def _listed(array: "pyarrow.Array") -> list[Any]:
    objects: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return objects


def _structs(array: "pyarrow.StructArray") -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        objects: list[Any] = array.to_pylist()
        return objects
    fields = [to_objects(child) for child in array.flatten()]
    made: list[Any] = [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)]
    if array.null_count:
        return [
            one if is_there else None for one, is_there in zip(made, _listed(array.is_valid()), strict=True)
        ]
    return made


def _lists(array: "pyarrow.ListArray") -> list[Any]:
    values = to_objects(array.flatten())
    lists: list[Any] = []
    start = 0
    for length in to_objects(array.value_lengths()):
        if length is None:
            lists.append(None)
            continue
        lists.append(values[start : start + length])
        start += length
    return lists

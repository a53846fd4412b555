"""Which columns of a table a mapping reads: the others are never made into Python objects."""

from typing import TYPE_CHECKING

from asyncrl.data.columns import Columns, ToRow, near_names, parts_of

if TYPE_CHECKING:
    import pyarrow


def names_read(make: ToRow | None, schema: "pyarrow.Schema") -> list[str]:
    """The columns of `schema` that `make` reads, in their order.

    All of them where only `make` knows, where one that it needs is missing (then the error names them all),
    and where rows name verifiers, which may take their columns.
    """
    names: list[str] = schema.names
    if not isinstance(make, Columns) or not all(_has(schema, path) for path in (make.prompt, make.answer)):
        return names
    read = {parts_of(path, names)[0] for path in (make.prompt, make.answer)}
    if make.verifier is None and "verifier" in names:
        return names
    read |= {"environment", *near_names("verifier", tuple(names))}
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

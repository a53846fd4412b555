"""The columns of all features, as their parts pack them."""

from asyncrl.model.column_bytes import TEACHER_LOGPROBS
from asyncrl.records import CREDITS
from asyncrl.trainer.packing.columns import Column, TokenColumn
from asyncrl.trainer.packing.routes import RouteColumn
from asyncrl.trainer.packing.terms import KeptColumn, TopColumn

_ALL: list[Column] = [
    KeptColumn(),
    RouteColumn(),
    TokenColumn(CREDITS),
    TokenColumn(TEACHER_LOGPROBS),
    TopColumn(),
]
COLUMNS = {each.name: each for each in _ALL}

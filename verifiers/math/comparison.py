"""Whether a response's tree says what the gold's tree says. Owns the policy for every pair of shapes.

The gold decides what kind of thing is asked for; a response of another kind is accepted only by a rule
written here. Nothing matches by default, so a response with more candidates than the gold, or in a shape
not foreseen here, is wrong."""

from verifiers.math.arithmetic import exact_or_none
from verifiers.math.marks import as_matrix, as_vector, is_full_hour, same_based, same_ratio, same_with_marks
from verifiers.math.nodes import (
    SETS,
    Based,
    Bracket,
    FunctionCall,
    Listing,
    Matrix,
    Modulo,
    NamedSet,
    Node,
    Operation,
    Piecewise,
    Quotient,
    Ratio,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Symbol,
    Text,
)
from verifiers.math.regions import Region, same_piecewise, same_region, to_region
from verifiers.math.relations import (
    same_equation,
    same_inequality,
    solved_for,
    value_for_name,
    value_of_chain,
)
from verifiers.math.scalars import same_scalar
from verifiers.math.shorthand import expand, respelled, with_constant_of
from verifiers.math.solutions import (
    are_of_many,
    distinct_labels,
    is_class,
    list_of_words,
    pair_off,
    plain_items,
    same_family,
    same_solutions,
    shared_names,
    unknowns,
    without_qualifier,
)
from verifiers.math.substitution import is_antiderivative, is_integral_without_ends, settled
from verifiers.math.trees import free_symbols, is_name, named_terms, names_ratio

MAX_ITEMS = 64


def same_answer(gold: Node, response: Node) -> bool:
    """Whether the response, as a whole, is the gold. Not symmetric: the gold sets the form."""
    gold, response = expand(gold), expand(response)
    response = without_qualifier(gold, response)
    if gold == response:
        return True
    both = settled(gold, with_constant_of(gold, response))
    if both is not None and _same(*both):
        return True
    return any(_same(gold, other) for other in respelled(gold, response))


def _same(gold: Node, response: Node) -> bool:
    words = list_of_words(gold)
    if words is not None and words == list_of_words(response):
        return True
    if same_family(gold, response):
        return True
    if (is_same := same_solutions(gold, response, _same)) is not None:
        return is_same
    match gold, response:
        case (Modulo(), _) | (Relation(), Modulo()):
            return _same_modulo(gold, response)
        case Relation(), _:
            return _same_as_relation(gold, response)
        case Listing(), _:
            return _same_as_listing(gold, response)
        case _, Modulo():
            return _same_modulo(gold, response)
    response = _without_name(gold, response)
    match gold, response:
        case Text(), _:
            return gold == response
        case (_, Text()):
            return False
        case Bracket(), _:
            return _same_as_bracket(gold, response)
        case ((SetOf() | SetOperation() | NamedSet() | SetBuilder()), _):
            return _same_as_set(gold, response)
        case Matrix(), _:
            return _same_as_matrix(gold, response)
        case Ratio(), _:
            return same_ratio(gold, response)
        case Piecewise(), _:
            return _same_pieces(gold, response)
    return _same_as_scalar(gold, response)


def _without_name(gold: Node, response: Node) -> Node:
    """`A = ...` against a gold without a name: what stands after the sign. A chain must hold together."""
    if not isinstance(response, Relation) or isinstance(gold, Relation):
        return response
    if isinstance(gold, SETS) and response.operators == ("in",) and is_name(response.sides[0]):
        return response.sides[1]
    value = value_of_chain(gold, response)
    return response if value is None else value


# Scalars


def _same_as_scalar(gold: Node, response: Node) -> bool:
    if isinstance(response, SetOf) and len(response.items) == 1:
        # {5}, the solution set, for the one solution 5.
        response = response.items[0]
    if isinstance(response, Ratio) and is_full_hour(response):
        response = response.items[0]
    match gold, response:
        case Quotient(), Ratio((first, second)):
            # 3:4 for the fraction 3/4.
            response = Quotient(first, second)
        case _, Ratio((_, _)):
            return False
        case (Based(), _) | (_, Based()):
            return same_based(gold, response)
    vector = as_vector(gold)
    if vector is not None:
        other = as_vector(response)
        return other is not None and _same_in_order(vector, other)
    if isinstance(response, (Listing, Relation, Bracket, Matrix, Piecewise, *SETS)):
        return False
    if isinstance(gold, Operation) and is_integral_without_ends(gold):
        return gold == response or is_antiderivative(gold, response)
    return same_with_marks(gold, response)


def _same_modulo(gold: Node, response: Node) -> bool:
    """Residues: the modulus may be left out by one side; with it, any representative will do."""
    match gold, response:
        case Modulo(), Modulo():
            return _same_residues(gold, response)
        case Modulo(), _:
            return (_is_residue(gold) and _same(gold.value, response)) or _same_class(gold, response)
        case _, Modulo():
            return (_is_residue(response) and _same(gold, response.value)) or _same_class(response, gold)
    return False


def _same_class(congruence: Modulo, other: Node) -> bool:
    r"""x \equiv 3 \pmod 7 and 7k + 3."""
    name, value = _named_residue(congruence.value)
    residue, modulus = exact_or_none(value), exact_or_none(congruence.modulus)
    return residue is not None and modulus is not None and is_class(other, name, residue, modulus)


def _same_residues(gold: Modulo, response: Modulo) -> bool:
    if not same_scalar(gold.modulus, response.modulus):
        return False
    if _same(gold.value, response.value):
        return True
    (gold_name, gold_value), (name, value) = _named_residue(gold.value), _named_residue(response.value)
    if gold_name is not None and name is not None and gold_name != name:
        return False
    return same_scalar(Modulo(gold_value, gold.modulus), Modulo(value, gold.modulus))


def _is_residue(node: Modulo) -> bool:
    """Whether the value is a number below the modulus: 17 \\bmod 5 is not 17, n \\bmod 5 is not n."""
    value, modulus = exact_or_none(_named_residue(node.value)[1]), exact_or_none(node.modulus)
    return value is not None and modulus is not None and abs(value) < abs(modulus)


def _named_residue(node: Node) -> tuple[Node | None, Node]:
    match node:
        case Relation(("=",), (name, value)):
            return name, value
    return None, node


# Relations


def _same_as_relation(gold: Relation, response: Node) -> bool:
    if set(gold.operators) == {"="}:
        return _same_as_equation(gold, response)
    if gold.operators == ("in",) and isinstance(gold.sides[1], SetOf) and is_name(gold.sides[0]):
        named = isinstance(response, Relation) and gold.sides[0] not in response.sides
        return not named and _same(gold.sides[1], response)
    region = to_region(gold)
    if region is not None and _same_region_as(region, response):
        return True
    if region is not None and len(free_symbols(gold)) < 2:
        return False
    # A segment AB is one name for a region, and a product for 2AB > 10.
    if isinstance(response, Relation):
        return same_inequality(gold, response)
    if gold.operators in (("in",), ("~",)) and is_name(gold.sides[0]):
        return _same(gold.sides[1], response)
    return False


def _same_as_equation(gold: Relation, response: Node) -> bool:
    if not isinstance(response, Relation):
        # x = 5 asked for the value; 2x + y = 5 asked for the equation.
        name, value = gold.sides[0], gold.sides[-1]
        is_value = isinstance(name, FunctionCall) and exact_or_none(value) is not None
        if is_name(name) or is_value or (names_ratio(name, value) and not free_symbols(value)):
            return _same_value(name, value, response)
        return is_name(value) and len(gold.sides) == 2 and _same(name, response)
    if set(response.operators) == {"in"} and is_name(gold.sides[0]):
        return gold.sides[0] == response.sides[0] and _same(gold.sides[-1], response.sides[1])
    if not set(response.operators) <= {"=", "~"}:
        return False
    solved_gold, solved_response = solved_for(gold), solved_for(response)
    if solved_gold and solved_response:
        told = value_for_name(solved_gold[0], solved_response)
        if told is not None:
            return _same_value(*solved_gold, told)
    return same_equation(gold, response)


def _same_value(name: Node, value: Node, response: Node) -> bool:
    if isinstance(value, Ratio) and not isinstance(response, Text):
        return same_ratio(value, response, has_names=bool(named_terms(name)))
    return _same(value, response)


def _same_region_as(region: Region, response: Node) -> bool:
    other = to_region(response)
    return other is not None and same_region(region, other)


# Several items


def _same_as_listing(gold: Listing, response: Node) -> bool:
    region = to_region(gold)
    other = to_region(response) if region is not None else None
    if region is not None and other is not None:
        return same_region(region, other)
    asked = unknowns(gold.items)
    told = unknowns(response.items if isinstance(response, Listing) else (response,))
    if asked and told and asked != told:
        # x = 1 or x = 2 says nothing about y.
        return False
    if isinstance(response, Relation):
        response = _relation_of_many(response)
    match response:
        case Bracket("(", ")", items):
            return _same_labelled(gold.items, items) or _same_in_order(plain_items(gold), items)
        case SetOf():
            members = _members(response, like=gold)
            return not are_of_many(gold.items) and _same_in_any_order(plain_items(gold), members)
        case SetOperation():
            region = to_region(SetOf(plain_items(gold)))
            return region is not None and _same_region_as(region, response)
        case Listing():
            return _same_listings(gold, response)
    return len(gold.items) == 1 and _same(gold.items[0], response)


def _same_listings(gold: Listing, response: Listing) -> bool:
    if _are_conditions(gold.items) and (gold.joined_by == "or") is not (response.joined_by == "or"):
        return False
    letters = all(isinstance(item, Symbol) for item in (*gold.items, *response.items))
    if letters and {gold.joined_by, response.joined_by} == {"and", "or"}:
        return False
    if distinct_labels(gold.items) and not _have_relation(response.items):
        return _same_labelled(gold.items, response.items)
    if are_of_many(response.items) and not _have_relation(gold.items):
        return _same_labelled(response.items, gold.items)
    if are_of_many(gold.items) and not all(isinstance(item, Relation) for item in response.items):
        # "x = 1, 2" gives two values to x and none to y.
        return False
    return _same_in_any_order(shared_names(gold), shared_names(response))


def _are_conditions(items: tuple[Node, ...]) -> bool:
    """Whether "or" between the items says something else than "and": not between values of one unknown."""
    are_values = all(isinstance(item, Relation) and item.operators == ("=",) for item in items)
    return _have_relation(items) and (are_of_many(items) or not are_values)


def _have_relation(items: tuple[Node, ...]) -> bool:
    return any(isinstance(item, Relation) for item in items)


def _relation_of_many(response: Relation) -> Node:
    """x \\in {1, 2} and x = {1, 2}: the set. (x, y) = (1, 2): the pair."""
    match response:
        case Relation(("in",) | ("=",), (name, value)) if is_name(name) or isinstance(name, Bracket):
            return value
    return response


def _same_labelled(labelled: tuple[Node, ...], plain: tuple[Node, ...]) -> bool:
    """x = 1, y = 2 against (1, 2): in the order of the alphabet, which is how such pairs are asked for."""
    names = distinct_labels(labelled)
    if not names or names != sorted(names):
        return False
    values = tuple(item.sides[1] for item in labelled if isinstance(item, Relation))
    return _same_in_order(values, plain)


def _same_in_order(gold: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
    return len(gold) == len(response) <= MAX_ITEMS and all(map(_same, gold, response))


def _same_in_any_order(gold: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
    """Each gold item exactly once. A bare list counts as written; only a set says nothing by repeating, which
    the caller leaves out."""
    return len(gold) == len(response) <= MAX_ITEMS and pair_off(gold, response, _same)


def _members(set_of: SetOf, *, like: Listing) -> tuple[Node, ...]:
    """The members of a set, to compare with a list: without repetitions, unless both have equally many."""
    return set_of.items if len(set_of.items) == len(like.items) else _distinct(set_of.items)


def _distinct(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without literal repetitions; a set says nothing by repeating."""
    return tuple(dict.fromkeys(items))


# Brackets, sets, matrices


def _same_as_bracket(gold: Bracket, response: Node) -> bool:
    if isinstance(response, Bracket):
        return _same_brackets(gold, response)
    if isinstance(response, Matrix) and (matrix := as_matrix(gold)) is not None:
        return _same_as_matrix(matrix, response)
    vector = as_vector(response)
    if vector is not None or isinstance(response, Matrix):
        return vector is not None and len(gold.items) > 1 and _same_in_order(gold.items, vector)
    if isinstance(response, Listing) and _same_labelled(response.items, gold.items):
        return True
    region = to_region(gold)
    if region is not None and _same_region_as(region, response):
        return True
    if not isinstance(response, Listing) or response.joined_by != "," or gold.opening not in "(<":
        return False
    is_plain = not any(isinstance(item, (Relation, Text)) for item in response.items)
    return is_plain and _same_in_order(gold.items, response.items)


def _same_brackets(gold: Bracket, response: Bracket) -> bool:
    if not _same_in_order(gold.items, response.items):
        return False
    if (gold.opening, gold.closing) == (response.opening, response.closing):
        return True
    pair = {gold.opening + gold.closing, response.opening + response.closing}
    # A vector may wear round, square or angle brackets. Two items in [ ] are an interval: its ends count.
    return pair == {"()", "<>"} or (len(gold.items) > 2 and pair <= {"()", "[]", "<>"})


def _same_as_set(gold: Node, response: Node) -> bool:
    match gold, response:
        case SetOf(), SetOf():
            return _same_in_any_order(_distinct(gold.items), _distinct(response.items))
        case SetOf(), Listing():
            of_one = not are_of_many(response.items)
            return of_one and _same_in_any_order(_members(gold, like=response), shared_names(response))
        case SetOf((only,)), _ if not isinstance(response, SETS):
            return _same(only, response)
    region = to_region(gold)
    if region is not None:
        return _same_region_as(region, response)
    match gold, response:
        case NamedSet(), _:
            return gold == response
        case SetBuilder(), SetBuilder():
            return _same(gold.element, response.element) and _same(gold.condition, response.condition)
        case SetOperation(), SetOperation():
            orders = [(response.left, response.right), (response.right, response.left)]
            return gold.operator == response.operator and any(
                _same(gold.left, left) and _same(gold.right, right)
                for left, right in orders[: 1 if gold.operator == "difference" else 2]
            )
    return False


def _same_as_matrix(gold: Matrix, response: Node) -> bool:
    matrix = as_matrix(response)
    if matrix is not None:
        return len(gold.rows) == len(matrix.rows) and all(map(_same_in_order, gold.rows, matrix.rows))
    vector = as_vector(gold)
    other = as_vector(response) if not isinstance(response, Bracket) else response.items
    return vector is not None and other is not None and _same_in_order(vector, other)


def _same_pieces(gold: Piecewise, response: Node) -> bool:
    if isinstance(response, (Listing, Relation, Text, Bracket, *SETS)):
        return False
    if (
        isinstance(response, Piecewise)
        and len(gold.pieces) == len(response.pieces)
        and pair_off(gold.pieces, response.pieces, lambda one, other: all(map(_same, one, other)))
    ):
        return True
    return same_piecewise(gold, response, _same)

"""Builtins written in Python, traced in place of their C versions when they meet values that are not constants.

In: nothing. Out: plain functions with the builtins' meaning.
Always: nothing here calls anything but other builtins.
"""
# ruff: noqa: SIM110, B007

import collections
import sys
from itertools import chain

_MISSING = object()
#: How `min()` and `max()` say that they got nothing.
EMPTY = "iterable argument is empty" if sys.version_info >= (3, 12) else "arg is an empty sequence"
#: Whether `sum()` keeps what adding floats loses.
COMPENSATED = sys.version_info >= (3, 12)
#: Whether an OrderedDict shows a list of pairs.
ORDERED_AS_PAIRS = sys.version_info < (3, 12)


def any_(iterable):
    for item in iterable:
        if item:
            return True
    return False


def all_(iterable):
    for item in iterable:
        if not item:
            return False
    return True


def listed(iterable):
    found = []
    for item in iterable:
        found.append(item)
    return found


def tupled(iterable):
    found = []
    for item in iterable:
        found.append(item)
    return tuple(found)


def sum_(iterable, /, start=0):
    iterator = iter(iterable)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if isinstance(start, bytes):
        raise TypeError("sum() can't sum bytes [use b''.join(seq) instead]")
    total = start
    lost = 0.0
    numbers = COMPENSATED and (type(start) is float or type(start) is int and _is_long(start))
    for item in iterator:
        if numbers and type(total) is float:
            if type(item) is float:
                added = total + item
                if abs(total) >= abs(item):
                    lost += (total - added) + item
                else:
                    lost += (item - added) + total
                total = added
                continue
            if isinstance(item, int) and _is_long(item):
                total = total + float(item)
                continue
            numbers = False
            total = _whole(total, lost)
        elif numbers and not (type(item) in (int, bool) and _is_long(item) and _is_long(total + item)):
            total = total + item
            numbers = type(total) is float
            continue
        total = total + item
    return _whole(total, lost) if numbers and type(total) is float else total


def _is_long(number):
    return -(2**63) <= number < 2**63


def _whole(total, lost):
    """The sum with what was lost on the way (Kahan and Neumaier), unless that is not finite."""
    return total + lost if lost and lost - lost == 0 else total


def min_of(items, key, default, missing):
    found = missing
    for item in items:
        rank = item if key is None else key(item)
        if found is missing or rank < best:  # noqa: F821
            found, best = item, rank
    if found is missing:
        if default is missing:
            raise ValueError("min() " + EMPTY)
        return default
    return found


def max_of(items, key, default, missing):
    found = missing
    for item in items:
        rank = item if key is None else key(item)
        if found is missing or rank > best:  # noqa: F821
            found, best = item, rank
    if found is missing:
        if default is missing:
            raise ValueError("max() " + EMPTY)
        return default
    return found


def sorted_(items, key, reverse):
    ranks = []
    for item in items:
        ranks.append(key(item))
    order = sorted(range(len(items)), key=ranks.__getitem__, reverse=reverse)
    return list(map(items.__getitem__, order))


def reduce_(function, iterable, *initial):
    try:
        iterator = iter(iterable)
    except TypeError:
        iterator = None
    if iterator is None:
        raise TypeError("reduce() arg 2 must support iteration")
    if initial:
        value = initial[0]
    else:
        value = next(iterator, _MISSING)
        if value is _MISSING:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in iterator:
        value = function(value, item)
    return value


def iterate_by_index(obj):
    index = 0
    while True:
        try:
            item = obj[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def copy_ordered(ordered):
    copied = type(ordered)()
    for key in _ordered_iter(ordered):
        copied[key] = ordered[key]
    return copied


def setdefault_ordered(ordered, key, default=None):
    if key in ordered:
        return ordered[key]
    ordered[key] = default
    return default


_ordered_iter = collections.OrderedDict.__iter__


def join_ordered(cls, left, right):
    joined = cls(left)
    for key in right.keys():
        joined[key] = right[key]
    return joined


def ask_length(obj):
    try:
        len(obj)
    except TypeError:
        pass


def reversed_(obj):
    return reversed_by_index(obj, len(obj))


def reversed_by_index(obj, index):
    while index > 0:
        index -= 1
        try:
            item = obj[index]
        except (IndexError, StopIteration):
            return
        yield item


#: The generators that stand for iterators which are asked for how much is left by the length of what they go over.
BY_INDEX = (iterate_by_index.__code__, reversed_by_index.__code__)


def chain_(iterables):
    for iterable in iterables:
        for item in iterable:
            yield item


def product_(pools):
    result = [()]
    for pool in pools:
        result = [(*head, item) for head in result for item in pool]
    return iter(result)


def count_(sequence, value, /):
    found = 0
    for item in sequence:
        if item is value or item == value:
            found += 1
    return found


def index_(sequence, value, /, *bounds):
    for position in range(len(sequence))[slice(*bounds, *(None,) * (2 - len(bounds)))]:
        if sequence[position] is value or sequence[position] == value:
            return position
    return type(sequence)().index(value)  # its ValueError


def islice_(iterator, start, stop, step):
    taken, following = 0, start
    while True:
        while taken < following:
            if next(iterator, _MISSING) is _MISSING:
                return
            taken += 1
        if stop is not None and taken >= stop:
            return
        item = next(iterator, _MISSING)
        if item is _MISSING:
            return
        taken += 1
        following += step
        if stop is not None and following > stop:
            following = stop
        yield item


def accumulate_(iterator, func=None, initial=None):
    total = initial
    if initial is None:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def zip_longest_(iterators, fillvalue):
    ended = [False] * len(iterators)
    left = len(iterators)
    while left:
        row = []
        for index, iterator in enumerate(iterators):
            item = fillvalue
            if not ended[index]:
                item = next(iterator, _MISSING)
                if item is _MISSING:
                    ended[index] = True
                    left -= 1
                    if not left:
                        return
                    item = fillvalue
            row.append(item)
        yield tuple(row)


def starmap_(function, iterable):
    for arguments in iterable:
        yield function(*arguments)


def pairwise_(iterator):
    left = next(iterator, _MISSING)
    if left is _MISSING:
        return
    for right in iterator:
        yield left, right
        left = right


def itemgetter_(obj, items, keywords):
    return obj[items[0]] if len(items) == 1 else tuple(obj[item] for item in items)


def _dotted(obj, name):
    for part in name.split("."):
        obj = getattr(obj, part)
    return obj


def attrgetter_(obj, names, keywords):
    return _dotted(obj, names[0]) if len(names) == 1 else tuple(_dotted(obj, name) for name in names)


def methodcaller_(obj, args, keywords):
    return getattr(obj, args[0])(*args[1:], **keywords)


def compress_(data, selectors):
    for item, keep in zip(data, selectors):
        if keep:
            yield item


def cycle_(iterator):
    saved = []
    for item in iterator:
        saved.append(item)
        yield item
    while saved:
        for item in saved:
            yield item


def dropwhile_(predicate, iterator):
    for item in iterator:
        if not predicate(item):
            yield item
            break
    for item in iterator:
        yield item


def takewhile_(predicate, iterator):
    for item in iterator:
        if not predicate(item):
            return
        yield item


def filterfalse_(predicate, iterator):
    for item in iterator:
        if not (item if predicate is None else predicate(item)):
            yield item


def combinations_(pool, r):
    n = len(pool)
    if r > n:
        return
    indices = list(range(r))
    yield tuple(pool[i] for i in indices)
    while True:
        for i in reversed(range(r)):
            if indices[i] != i + n - r:
                break
        else:
            return
        indices[i] += 1
        for j in range(i + 1, r):
            indices[j] = indices[j - 1] + 1
        yield tuple(pool[i] for i in indices)


def combinations_with_replacement_(pool, r):
    n = len(pool)
    if not n and r:
        return
    indices = [0] * r
    yield tuple(pool[i] for i in indices)
    while True:
        for i in reversed(range(r)):
            if indices[i] != n - 1:
                break
        else:
            return
        indices[i:] = [indices[i] + 1] * (r - i)
        yield tuple(pool[i] for i in indices)


def permutations_(pool, r=None):
    n = len(pool)
    if r is None:
        r = n
    if r > n:
        return
    indices = list(range(n))
    cycles = list(range(n, n - r, -1))
    yield tuple(pool[i] for i in indices[:r])
    while n:
        for i in reversed(range(r)):
            cycles[i] -= 1
            if cycles[i] == 0:
                indices[i:] = indices[i + 1 :] + indices[i : i + 1]
                cycles[i] = n - i
            else:
                j = cycles[i]
                indices[i], indices[-j] = indices[-j], indices[i]
                yield tuple(pool[i] for i in indices[:r])
                break
        else:
            return


# --- groups of exceptions (CPython, Objects/exceptions.c) ---------------------------------------------------------


class Truth:
    """What a ``__bool__`` returned, for the instruction that asked for it to see whether it is one."""

    def __init__(self, value):
        self.value = value

    def __bool__(self):
        return self.value


class Answer:
    """What another special method returned, for the builtin that asked for it."""

    def __init__(self, value):
        self.value = value

    def answer(self, *asked):
        return self.value

    __len__ = __iter__ = __str__ = __repr__ = __format__ = __int__ = __hash__ = answer


def truth_of(kind, value):
    return bool(kind(value))


def ahead(iterator, item):
    """An iterator that has given ``item`` already, for a loop that is to get it."""
    return chain((item,), iterator)


def asked(builtin, value):
    return builtin(Answer(value))


def converted(conversion, spec, value):
    return format(conversion(Answer(value)), spec)


def nothing(value):
    """What `setattr` and `delattr` return, whatever the methods that do it return."""
    return None


def initialise(cls, args, keywords, made):
    """What calling a class gives whose ``__new__`` returned ``made``."""
    if cls not in type(made).__mro__:
        return made
    return initialised(made, type(made).__init__(made, *args, **keywords))


def initialised(made, value):
    """The object made, whose ``__init__`` returned ``value``."""
    if value is not None:
        raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
    return made


def answered(otherwise, value):
    """What the method of an operator that was asked last returned; ``otherwise``: the result, or what a TypeError says."""
    if value is not NotImplemented:
        return value
    if type(otherwise) is str:
        raise TypeError(otherwise)
    return otherwise


def changed(operator, refusal, shown, left, right, value):
    """What the method of an operator in place returned, or what the operator gives; its refusal shows that of in place."""
    if value is not NotImplemented:
        return value
    try:
        return operator(left, right)
    except TypeError as error:
        if str(error) != refusal:
            raise
    raise TypeError(shown)


def matches(error, wanted):
    """Whether an exception is of a class, or of one of several, or a function says so."""
    raise NotImplementedError


def inherit(part, group):
    """Give a part of a group the group's traceback, context, cause and notes."""
    raise NotImplementedError


def is_same_raise(error, original):
    """Whether the two have one traceback, cause and context."""
    raise NotImplementedError


def group_part(group, errors):
    if not errors:
        return None
    part = group.derive(errors)
    if not isinstance(part, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    inherit(part, group)
    return part


def split_group(error, wanted, with_rest):
    if matches(error, wanted):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    matched, rest = [], []
    for inner in error.exceptions:
        part, other = split_group(inner, wanted, with_rest)
        if part is not None:
            matched.append(part)
        if other is not None:
            rest.append(other)
    return group_part(error, matched), group_part(error, rest) if with_rest else None


def star_match(error, wanted):
    """What an `except*` clause takes of an exception, and what it leaves."""
    if error is None:
        return None, None
    if matches(error, wanted):
        return error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", (error,)), None
    return error.split(wanted) if isinstance(error, BaseExceptionGroup) else (None, error)


def leaves_of(errors, found):
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            leaves_of(error.exceptions, found)
        else:
            found.append(error)
    return found


def prepare_reraise(original, errors):
    """What leaves a statement with `except*` clauses, of what they raised and left."""
    if not errors:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return errors[0]
    raised, kept = [], []
    for error in errors:
        if error is not None:
            (kept if is_same_raise(error, original) else raised).append(error)
    leaves = leaves_of(kept, [])
    rest, _ = split_group(original, lambda error: any(error is leaf for leaf in leaves), False)
    if rest is not None:
        raised.append(rest)
    if not raised:
        return None
    return BaseExceptionGroup("", raised) if len(raised) > 1 else raised[0]


def group_text(group):
    count = len(group.exceptions)
    return f"{group.message} ({count} sub-exception{'' if count == 1 else 's'})"


def defaultdict_text(self):
    return f"{type(self).__name__}({self.default_factory!r}, {dict.__repr__(self)})"


def set_text(self):
    if not (set if isinstance(self, set) else frozenset).__len__(self):
        return f"{type(self).__name__}()"
    return f"{type(self).__name__}({{{repr([*self])[1:-1]}}})"


def ordered_text(self):
    if not self:
        return f"{type(self).__name__}()"
    return f"{type(self).__name__}({list(self.items()) if ORDERED_AS_PAIRS else dict(self.items())!r})"


class Key:
    """What `functools.cmp_to_key` makes of an object."""

    __slots__ = ("compare", "obj")

    def __init__(self, compare, obj):
        self.compare = compare
        self.obj = obj

    def __lt__(self, other):
        if type(other) is not Key:
            raise TypeError("other argument must be K instance")
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other):
        if type(other) is not Key:
            raise TypeError("other argument must be K instance")
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other):
        if type(other) is not Key:
            raise TypeError("other argument must be K instance")
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other):
        if type(other) is not Key:
            raise TypeError("other argument must be K instance")
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other):
        if type(other) is not Key:
            raise TypeError("other argument must be K instance")
        return self.compare(self.obj, other.obj) >= 0

    __hash__ = None


def groupby_(iterator, key, grouper):
    """Source: CPython, Modules/itertoolsmodule.c, groupby_next, groupby_step and _grouper_next."""
    missing = object()
    target = current = value = latest = missing

    def step():
        nonlocal current, value
        found = next(iterator, missing)
        if found is missing:
            return False
        found_key = found if key is None else key(found)
        value, current = found, found_key
        return True

    def members(mine, goal):
        nonlocal current, value
        while latest is mine:
            if value is missing and not step():
                return
            if goal is not current and not goal == current:  # noqa: SIM201
                return
            found, value, current = value, missing, missing
            yield found

    while True:
        latest = missing
        while current is missing or (target is not missing and (target is current or target == current)):
            if not step():
                return
        target = current
        latest = mine = object()
        yield current, grouper(members(mine, target))


def as_group(members):
    """Has a rule: the generator as the class of C."""
    return members
